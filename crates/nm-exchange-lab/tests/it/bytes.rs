//! Whatever bytes come from outside: each is something or refused.

use nm_exchange_lab::testing::{codec, samples};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_of_a_stranger_are_something_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        codec(&bytes);
    }

    /// Bytes that were something, with one of them changed.
    #[test]
    fn bytes_that_are_nearly_something_are_something_or_refused(
        seed in any::<u64>(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        for mut bytes in samples(seed) {
            let at = at.index(bytes.len());
            bytes[at] = value;
            codec(&bytes);
        }
    }
}
