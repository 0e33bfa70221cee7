//! The card to share, in both formats.

use nm_report::card::{Format, SIZE, card};

use crate::fixture::{self, SMALL};
use crate::golden;

/// The made-up result, with references.
fn drawn(format: Format) -> Vec<u8> {
    let mut result = fixture::result(SMALL);
    result.verdicts[0].evidence[0].series = "netns/tcp-spin pingpong 64 B".into();
    card(&result, &[fixture::reference()], format)
}

fn keep(name: &str, bytes: &[u8]) {
    std::fs::write(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), bytes).unwrap();
}

#[test]
fn the_card_has_verdict_machine_sentences_and_curves() {
    let svg = String::from_utf8(drawn(Format::Svg)).unwrap();
    keep("card.svg", svg.as_bytes());
    assert_eq!(svg, String::from_utf8(drawn(Format::Svg)).unwrap(), "the same bytes each time");
    for text in [
        "width=\"1200\" height=\"630\"",
        ">FAIL</text>",
        "throughput 9.10 Gb/s on loopback/tcp-blocking",
        "Made-up CPU @ 1 GHz",
        ">best:</text>",
        ">cost:</text>",
        ">tail:</text>",
        "netns/tcp-spin",
        "median &lt; 6 µs",
        "made-up-reference",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    let mut reader = quick_xml::Reader::from_str(&svg);
    while reader.read_event().expect("well-formed") != quick_xml::events::Event::Eof {}
}

#[test]
fn a_card_of_pixels_has_its_size_and_its_colours() {
    let bytes = drawn(Format::Png);
    keep("card.png", &bytes);
    assert!(bytes.len() < 150_000, "{} bytes", bytes.len());
    let image = tiny_skia::Pixmap::decode_png(&bytes).unwrap();
    assert_eq!((image.width(), image.height()), SIZE);
    let has = |red, green, blue| {
        let pixels = image.pixels().iter().map(|pixel| pixel.demultiply());
        pixels.filter(|p| (p.red(), p.green(), p.blue()) == (red, green, blue)).count()
    };
    // The bar of a failure, the line of tcp-spin, and the ink of the letters.
    assert!(has(0xa3, 0x2b, 0x00) > 14 * 600 && has(0x00, 0x72, 0xb2) > 300);
    assert!(has(0x16, 0x20, 0x2b) > 2000);
}

#[test]
fn a_result_without_round_trips_has_a_card_without_curves() {
    let mut result = fixture::result(SMALL);
    result.series.clear();
    let svg = String::from_utf8(card(&result, &[], Format::Svg)).unwrap();
    assert!(svg.contains(">FAIL</text>") && !svg.contains("by percentile"), "{svg}");
    assert!(!card(&result, &[], Format::Png).is_empty());
}

#[test]
fn hostile_texts_stay_text_on_a_card() {
    let attack = "</text><script>alert(1)</script>\u{1b}[31m 漢字";
    let svg = String::from_utf8(card(&fixture::hostile(attack), &[], Format::Svg)).unwrap();
    assert!(!svg.contains("<script") && !svg.contains('\u{1b}'), "{svg}");
    assert!(!card(&fixture::hostile(attack), &[], Format::Png).is_empty());
}

#[test]
fn the_name_of_a_file_asks_for_its_format() {
    let of = |name: &str| Format::of(&golden::path(name));
    assert_eq!(of("a.svg"), Some(Format::Svg));
    assert_eq!(of("A.PNG"), Some(Format::Png));
    assert_eq!(of("a.jpg").or(of("svg")).or(of("a.svg/b")), None);
}
