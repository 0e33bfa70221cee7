//! One result, many faces; and other tools' output read into a result.
