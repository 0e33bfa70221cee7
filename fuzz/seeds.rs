//! Writes the initial corpus of the fuzzers: `cargo run --bin seeds` fills `corpus/book` and
//! `corpus/codec`. The argument is the number of files of each kind, eight by default.

use std::path::Path;

use nm_book::testing::seeded;
use nm_exchange_lab::testing::samples;

fn main() -> std::io::Result<()> {
    let count = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(8);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in ["book", "codec"] {
        std::fs::create_dir_all(corpus.join(target))?;
    }
    for seed in 0..count {
        let bytes: Vec<u8> = seeded(seed).take(2000).collect();
        std::fs::write(corpus.join(format!("book/seed-{seed}")), bytes)?;
        for (kind, bytes) in samples(seed).into_iter().enumerate() {
            std::fs::write(corpus.join(format!("codec/seed-{seed}-{kind}")), bytes)?;
        }
    }
    Ok(())
}
