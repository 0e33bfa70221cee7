//! The paths of series.

use std::collections::BTreeSet;

pub use nm_model::Selector;
use nm_model::result::Series;

/// The paths of some series without duplicates, in order of their text.
pub(crate) fn paths<'a>(series: impl IntoIterator<Item = &'a Series>) -> Vec<String> {
    let paths: BTreeSet<String> = series.into_iter().map(|series| series.key.path()).collect();
    paths.into_iter().collect()
}
