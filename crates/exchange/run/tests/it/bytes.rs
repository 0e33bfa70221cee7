//! Arbitrary bytes from outside: each decoder refuses them or returns a valid value.

use nm_run::testing::{codec, samples};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_decoded_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        codec(&bytes);
    }

    /// Valid bytes with one of them changed.
    #[test]
    fn corrupted_bytes_are_decoded_or_refused(
        seed in any::<u64>(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        for mut bytes in samples(seed) {
            let at = at.index(bytes.len());
            bytes[at] = value;
            codec(&bytes);
        }
    }
}
