//! Enums and other types that are written as text: parsing, printing, serde and schema at once.

/// Defines an enum whose values have names; further names of a value are those of earlier versions.
/// A value with `if FEATURE` exists with that feature of this crate only.
macro_rules! named_enum {
    ($(#[$meta:meta])* $name:ident, $kind:literal, {
        $($(#[$vmeta:meta])* $variant:ident = $text:literal $(| $former:literal)*
            $(if $feature:tt)?),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vmeta])* $(#[cfg(feature = $feature)])? $variant),+ }

        impl $name {
            /// Every value, in the order in which it is shown.
            pub const ALL: &'static [$name] = &[
                $($(#[cfg(feature = $feature)])? $name::$variant),+
            ];

            /// The name in plans, on the command line and in results.
            pub fn name(self) -> &'static str {
                match self { $($(#[cfg(feature = $feature)])? $name::$variant => $text),+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;
            fn from_str(text: &str) -> Result<$name, $crate::words::UnknownWord> {
                match text {
                    // Files of earlier versions have the former names.
                    $($(#[cfg(feature = $feature)])? $text $(| $former)* => Ok($name::$variant),)+
                    _ => Err($crate::words::UnknownWord::new($kind, text, &[
                        $($(#[cfg(feature = $feature)])? $text),+
                    ])),
                }
            }
        }

        $crate::named_enum::text_serde!($name);
    };
}

/// Serialises a type by its text form.
macro_rules! text_serde {
    ($name:ident) => {
        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }

        impl ::schemars::JsonSchema for $name {
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(from: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                <String as ::schemars::JsonSchema>::json_schema(from)
            }
            fn inline_schema() -> bool {
                true
            }
        }
    };
}

pub(crate) use named_enum;
pub(crate) use text_serde;
