//! What is put comes back, and whatever bytes come are read or refused with the field's name.

use nm_codec::{DecodeError, DecodeFault, Field, Put, Reader, crc32c, fnv1a};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colour {
    Red,
    Green,
}

nm_codec::codes!(Colour { Red = 7, Green = 2 });

#[test]
fn codes_round_trip_and_unknown_ones_are_refused() {
    assert_eq!(Colour::ALL, [Colour::Red, Colour::Green]);
    for colour in Colour::ALL {
        assert_eq!(Colour::from_code("colour", colour.code()), Ok(*colour));
    }
    let error = Colour::from_code("colour", 1).unwrap_err();
    assert_eq!(error.to_string(), "field `colour`: no value has the code 1");
}

#[test]
fn errors_name_the_field() {
    let mut reader = Reader::new(&[1, 2, 3]);
    assert_eq!(reader.u16("first"), Ok(0x201));
    assert_eq!(reader.u32("second"), Err(DecodeError::truncated("second")));
    assert_eq!(
        reader.finish("first"),
        Err(DecodeError { field: "first", fault: DecodeFault::TrailingBytes(1) })
    );
    assert_eq!(reader.bool("third"), Err(DecodeError::unknown_code("third", 3)));
    assert_eq!(reader.finish("third"), Ok(()));
    assert_eq!(reader.bytes("fourth", 1), Err(DecodeError::truncated("fourth")));
    for (error, text) in [
        (DecodeError::truncated("a"), "field `a`: the bytes end before it does"),
        (DecodeError::invalid("a", "is too large"), "field `a`: it is too large"),
        (DecodeError::checksum("a"), "field `a`: it is not the checksum of the bytes"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn header_fields_follow_each_other() {
    const LENGTH: Field<u32> = Field::first("length");
    const KIND: Field<u8> = Field::after("kind", &LENGTH);
    const INDEX: Field<u64> = Field::after("index", &KIND);
    let mut header = [0; INDEX.end()];
    LENGTH.set(&mut header, 0x0403_0201);
    KIND.set(&mut header, 5);
    INDEX.set(&mut header, u64::MAX);
    assert_eq!(header[..5], [1, 2, 3, 4, 5]);
    assert_eq!((LENGTH.get(&header), KIND.get(&header)), (0x0403_0201, 5));
    assert_eq!((INDEX.get(&header), INDEX.range(), INDEX.name), (u64::MAX, 5..13, "index"));
}

#[test]
fn checksums_are_those_of_the_standards() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
}

proptest! {
    #[test]
    fn what_is_put_comes_back(
        (a, b, c, d) in any::<(u8, u16, u32, u64)>(), e in any::<i64>(), f in any::<bool>(),
        g in prop::collection::vec(any::<u8>(), 0..9), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = vec![];
        bytes.put_u8(a);
        bytes.put_u16(b);
        bytes.put_u32(c);
        bytes.put_u64(d);
        bytes.put_i64(e);
        bytes.put_bool(f);
        bytes.put(&g);
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes);
            let numbers = (reader.u8("a")?, reader.u16("b")?, reader.u32("c")?, reader.u64("d")?);
            let rest = (reader.i64("e")?, reader.bool("f")?, reader.bytes("g", g.len())?.to_vec());
            reader.finish("g")?;
            Ok::<_, DecodeError>((numbers, rest))
        };
        prop_assert_eq!(read(&bytes), Ok(((a, b, c, d), (e, f, g.clone()))));
        prop_assert!(read(&bytes[..cut.index(bytes.len())]).is_err());
    }
}
