//! One-byte codes of enums.

/// Gives an enum without fields its codes, both ways. A variant without a code is a compile error.
///
/// ```
/// #[derive(Debug, Clone, Copy, PartialEq, Eq)]
/// enum Side {
///     Buy,
///     Sell,
/// }
///
/// nm_codec::codes!(Side { Buy = 0, Sell = 1 });
///
/// assert_eq!(Side::Sell.code(), 1);
/// assert_eq!(Side::from_code("side", 1), Ok(Side::Sell));
/// assert!(Side::from_code("side", 2).is_err());
/// assert_eq!(Side::ALL, [Side::Buy, Side::Sell]);
/// ```
///
/// One that is left out does not compile:
///
/// ```compile_fail
/// #[derive(Debug, Clone, Copy, PartialEq, Eq)]
/// enum Side {
///     Buy,
///     Sell,
/// }
///
/// nm_codec::codes!(Side { Buy = 0 });
/// ```
#[macro_export]
macro_rules! codes {
    ($type:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        #[allow(dead_code)]
        impl $type {
            /// All values.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// Its code.
            #[inline]
            pub const fn code(self) -> u8 {
                match self {
                    $($type::$variant => $code),+
                }
            }

            /// The value with this code.
            ///
            /// # Errors
            /// If there is none; `field` is the name of the field that has the code.
            #[inline]
            pub const fn from_code(
                field: &'static str,
                code: u8,
            ) -> ::core::result::Result<$type, $crate::DecodeError> {
                #[deny(unreachable_patterns)]
                match code {
                    $($code => Ok($type::$variant),)+
                    _ => Err($crate::DecodeError::unknown_code(field, code as u64)),
                }
            }
        }
    };
}
