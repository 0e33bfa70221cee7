//! Macros that declare messages and their types. The struct, how it is written and read, and the
//! documentation of its bytes all come from one list of fields.

/// Declares a message. The fields of `head` have fixed places, and can be read and changed in a
/// frame (`View` and `Edit` in the same module, one method for each field). Those of `tail`
/// follow. `check` names a function that refuses values that no message has.
#[macro_export]
macro_rules! message {
    (
        $(#[doc = $doc:literal])+
        #[derive($($derive:ident),+)]
        pub struct $name:ident;
        $($parts:tt)*
    ) => {
        $crate::message! {
            @parts ['wire] [$name] [] [$name] [$($doc)+] [$($derive)+] $($parts)*
        }
    };
    (
        $(#[doc = $doc:literal])+
        #[derive($($derive:ident),+)]
        pub struct $name:ident<$life:lifetime>;
        $($parts:tt)*
    ) => {
        $crate::message! {
            @parts [$life] [$name<$life>] [<$life>] [$name] [$($doc)+] [$($derive)+] $($parts)*
        }
    };
    (
        @parts [$life:lifetime] [$($type:tt)+] [$($generics:tt)*] [$name:ident]
        [$($doc:literal)+] [$($derive:ident)+]
        head { $( $(#[doc = $head_doc:literal])+ $head:ident: $head_type:ty, )* }
        tail { $( $(#[doc = $tail_doc:literal])+ $tail:ident: $tail_type:ty, )* }
        $( check $check:path; )?
    ) => {
        $crate::record! {
            @fields [$life] [$($type)+] [$($generics)*] [$name] [$($doc)+] [$($derive)+]
            {
                $( $(#[doc = $head_doc])+ $head: $head_type, )*
                $( $(#[doc = $tail_doc])+ $tail: $tail_type, )*
            }
            [$($check)?]
        }

        /// The places of the fields at fixed places.
        #[derive(Debug, Clone, Copy)]
        struct Places {
            $( $head: $crate::parts::Place<$head_type>, )*
            end: usize,
        }

        const AT: Places = {
            let at = $crate::parts::PREFIX_BYTES;
            $(
                let $head = $crate::parts::Place::<$head_type>::at(at);
                let at = $head.end();
            )*
            Places { $($head,)* end: at }
        };

        /// A frame of this message, whose fields at fixed places are read without decoding it.
        #[derive(Debug, Clone, Copy)]
        pub struct View<'f>(#[allow(dead_code)] &'f [u8]);

        #[allow(dead_code)]
        impl<'f> View<'f> {
            /// The fields of a frame.
            ///
            /// # Errors
            /// If it is another message, or shorter than these fields.
            #[inline]
            pub fn of(
                frame: $crate::parts::Frame<'f>,
            ) -> Result<View<'f>, $crate::parts::DecodeError> {
                frame.expect(<$name as $crate::parts::Listed>::CODE)?;
                if $crate::parts::PREFIX_BYTES + frame.message.len() < AT.end {
                    return Err($crate::parts::DecodeError::truncated("message"));
                }
                Ok(View(frame.bytes))
            }

            $(
                $(#[doc = $head_doc])+
                #[inline]
                pub fn $head(&self) -> $head_type {
                    AT.$head.get(self.0)
                }
            )*
        }

        /// A frame of this message, whose fields at fixed places are changed. Its checksum is
        /// computed again when this is dropped.
        #[derive(Debug)]
        pub struct Edit<'f>(#[allow(dead_code)] $crate::parts::Sealed<'f>);

        #[allow(dead_code)]
        impl<'f> Edit<'f> {
            /// The fields of a frame.
            ///
            /// # Errors
            /// If it is another message, or shorter than these fields.
            #[inline]
            pub fn of(
                frame: &'f mut $crate::parts::FrameMut<'_>,
            ) -> Result<Edit<'f>, $crate::parts::DecodeError> {
                frame.sealed(<$name as $crate::parts::Listed>::CODE, AT.end).map(Edit)
            }

            $(
                $(#[doc = $head_doc])+
                #[inline]
                pub fn $head(&mut self, value: $head_type) -> &mut Edit<'f> {
                    AT.$head.set(self.0.bytes(), value);
                    self
                }
            )*
        }
    };
}

/// Declares a type of fields one after another.
#[macro_export]
macro_rules! record {
    (
        $(#[doc = $doc:literal])+
        #[derive($($derive:ident),+)]
        pub struct $name:ident $fields:tt
        $( check $check:path; )?
    ) => {
        $crate::record! {
            @fields ['wire] [$name] [] [$name] [$($doc)+] [$($derive)+] $fields [$($check)?]
        }
    };
    (
        @fields [$life:lifetime] [$($type:tt)+] [$($generics:tt)*] [$name:ident]
        [$($doc:literal)+] [$($derive:ident)+]
        {
            $(
                $(#[doc = $field_doc:literal])+
                $(#[serde(rename = $renamed:literal)])?
                $field:ident: $field_type:ty,
            )*
        }
        [$($check:path)?]
    ) => {
        $(#[doc = $doc])+
        #[derive($($derive),+)]
        pub struct $name $($generics)* {
            $(
                $(#[doc = $field_doc])+
                $(#[serde(rename = $renamed)])?
                pub $field: $field_type,
            )*
        }

        impl<$life> $crate::parts::Value<$life> for $($type)+ {
            const SIZE: Option<usize> =
                $crate::parts::total(&[$(<$field_type as $crate::parts::Value<$life>>::SIZE),*]);

            #[inline]
            fn put(&self, #[allow(unused)] out: &mut Vec<u8>) {
                $( $crate::parts::Value::put(&self.$field, out); )*
            }

            #[inline]
            fn bytes(&self) -> usize {
                0 $( + $crate::parts::Value::bytes(&self.$field) )*
            }

            #[inline]
            fn take(
                _field: &'static str,
                #[allow(unused)] reader: &mut $crate::parts::Reader<$life>,
            ) -> Result<Self, $crate::parts::DecodeError> {
                $( let $field = $crate::parts::Value::take(stringify!($field), reader)?; )*
                let read = $name { $($field),* };
                $( $check(&read)?; )?
                Ok(read)
            }

            fn describe(types: &mut $crate::parts::Types) -> String {
                types.add(stringify!($name), concat!($($doc, "\n"),+), |types| {
                    $crate::parts::Definition::Record($crate::fields!(types $life
                        $( [$($field_doc)+] $field: $field_type, )*))
                });
                stringify!($name).to_string()
            }

            fn example(
                #[allow(unused)] random: &mut $crate::parts::Random,
                #[allow(unused)] out: &mut Vec<u8>,
            ) {
                loop {
                    let start = out.len();
                    $( <$field_type as $crate::parts::Value<$life>>::example(random, out); )*
                    let is_one = true $( && {
                        let _ = $check;
                        $crate::parts::decode::<$name>(&out[start..]).is_ok()
                    } )?;
                    if is_one {
                        break;
                    }
                    out.truncate(start);
                }
            }
        }
    };
}

/// Declares a type of alternatives: a byte, and the fields of the one that it chooses.
#[macro_export]
macro_rules! choice {
    (
        $(#[doc = $doc:literal])+
        #[derive($($derive:ident),+)]
        pub enum $name:ident $alternatives:tt
    ) => {
        $crate::choice! {
            @all ['wire] [$name] [] [$name] [$($doc)+] [$($derive)+] $alternatives
        }
    };
    (
        $(#[doc = $doc:literal])+
        #[derive($($derive:ident),+)]
        pub enum $name:ident<$life:lifetime> $alternatives:tt
    ) => {
        $crate::choice! {
            @all [$life] [$name<$life>] [<$life>] [$name] [$($doc)+] [$($derive)+] $alternatives
        }
    };
    (
        @all [$life:lifetime] [$($type:tt)+] [$($generics:tt)*] [$name:ident]
        [$($doc:literal)+] [$($derive:ident)+]
        { $(
            $(#[doc = $one_doc:literal])+
            $one:ident = $code:literal
            $( { $( $(#[doc = $field_doc:literal])+ $field:ident: $field_type:ty, )+ } )?,
        )+ }
    ) => {
        $(#[doc = $doc])+
        #[derive($($derive),+)]
        pub enum $name $($generics)* {
            $(
                $(#[doc = $one_doc])+
                $one $( { $( $(#[doc = $field_doc])+ $field: $field_type, )+ } )?,
            )+
        }

        impl<$life> $crate::parts::Value<$life> for $($type)+ {
            const SIZE: Option<usize> = None;

            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $( $name::$one $( { $($field),+ } )? => {
                        $crate::parts::Value::put(&($code as u8), out);
                        $( $( $crate::parts::Value::put($field, out); )+ )?
                    } )+
                }
            }

            fn take(
                field: &'static str,
                reader: &mut $crate::parts::Reader<$life>,
            ) -> Result<Self, $crate::parts::DecodeError> {
                #[deny(unreachable_patterns)]
                match reader.u8(field)? {
                    $( $code => {
                        $( $( let $field =
                            $crate::parts::Value::take(stringify!($field), reader)?; )+ )?
                        Ok($name::$one $( { $($field),+ } )?)
                    } )+
                    code => {
                        Err($crate::parts::DecodeError::unknown_code(field, code.into()))
                    }
                }
            }

            fn describe(types: &mut $crate::parts::Types) -> String {
                types.add(stringify!($name), concat!($($doc, "\n"),+), |types| {
                    $crate::parts::Definition::Choice(vec![$(
                        $crate::parts::Alternative {
                            code: $code,
                            name: stringify!($one).to_string(),
                            doc: $crate::parts::prose(concat!($($one_doc, "\n"),+)),
                            fields: $crate::fields!(types $life
                                $( $( [$($field_doc)+] $field: $field_type, )+ )?),
                        }
                    ),+])
                });
                stringify!($name).to_string()
            }

            fn example(random: &mut $crate::parts::Random, out: &mut Vec<u8>) {
                let codes: &[u8] = &[$($code),+];
                let code = codes[random.below(codes.len() as u64) as usize];
                $crate::parts::Value::put(&code, out);
                match code {
                    $( $code => {
                        $( $(
                            <$field_type as $crate::parts::Value<$life>>::example(random, out);
                        )+ )?
                    } )+
                    _ => unreachable!("it is one of these codes"),
                }
            }
        }
    };
}

/// Declares an enum without fields, whose values are a byte.
#[macro_export]
macro_rules! codes {
    (
        $(#[doc = $doc:literal])+
        $(#[derive($($also:ident),+)])?
        $(#[serde(rename_all = $case:literal)])?
        pub enum $name:ident { $( $(#[doc = $one_doc:literal])+ $one:ident = $code:literal, )+ }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $(#[derive($($also),+)])?
        $(#[serde(rename_all = $case)])?
        pub enum $name { $( $(#[doc = $one_doc])+ $one, )+ }

        $crate::parts::nm_codec::codes!($name { $($one = $code),+ });

        impl<'wire> $crate::parts::Value<'wire> for $name {
            const SIZE: Option<usize> = Some(1);

            fn put(&self, out: &mut Vec<u8>) {
                $crate::parts::Value::put(&self.code(), out);
            }

            fn take(
                field: &'static str,
                reader: &mut $crate::parts::Reader<'wire>,
            ) -> Result<$name, $crate::parts::DecodeError> {
                $name::from_code(field, reader.u8(field)?)
            }

            fn describe(types: &mut $crate::parts::Types) -> String {
                types.add(stringify!($name), concat!($($doc, "\n"),+), |_| {
                    $crate::parts::Definition::Choice(vec![$(
                        $crate::parts::Alternative {
                            code: $code,
                            name: stringify!($one).to_string(),
                            doc: $crate::parts::prose(concat!($($one_doc, "\n"),+)),
                            fields: vec![],
                        }
                    ),+])
                });
                stringify!($name).to_string()
            }

            fn example(random: &mut $crate::parts::Random, out: &mut Vec<u8>) {
                let all = $name::ALL;
                let one = &all[random.below(all.len() as u64) as usize];
                $crate::parts::Value::put(one, out);
            }
        }
    };
}

/// The descriptions of fields.
#[doc(hidden)]
#[macro_export]
macro_rules! fields {
    ($types:ident $life:lifetime $( [$($doc:literal)+] $field:ident: $field_type:ty, )*) => {{
        let _ = &$types;
        vec![$(
            $crate::parts::Field {
                name: stringify!($field).to_string(),
                type_name: <$field_type as $crate::parts::Value<$life>>::describe($types),
                size: <$field_type as $crate::parts::Value<$life>>::SIZE,
                doc: $crate::parts::prose(concat!($($doc, "\n"),+)),
            }
        ),*]
    }};
}

/// Declares the table of messages: each row has the module of the message, which lies in a file of
/// that name, the message, its code, and the ways that it takes. From it come the enum of all
/// messages, that of their kinds, and the [`Row`](crate::parts::Row)s. One that is not in the table
/// has no code, so that it can neither be written nor read, and a kind that a `match` forgets does
/// not compile.
#[macro_export]
macro_rules! messages {
    (
        for<$life:lifetime>
        $(
            $module:ident::$name:ident $(<$own:lifetime>)? = $code:literal,
            $( $($hop:ident)>+ )|+;
        )+
    ) => {
        $(
            pub mod $module;
            pub use $module::$name;

            impl $(<$own>)? $crate::parts::Listed for $name $(<$own>)? {
                const CODE: u8 = $code;
            }

            impl<$life> From<$name $(<$own>)?> for Message<$life> {
                #[inline]
                fn from(message: $name $(<$own>)?) -> Message<$life> {
                    Message::$name(message)
                }
            }
        )+

        /// Which message a frame has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $( #[doc = concat!("[`", stringify!($name), "`].")] $name, )+
        }

        $crate::parts::nm_codec::codes!(Kind { $($name = $code),+ });

        impl Kind {
            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Kind::$name => stringify!($name), )+
                }
            }

            /// Whether a message has this code.
            #[inline]
            pub const fn is_known(code: u8) -> bool {
                Kind::from_code("kind", code).is_ok()
            }
        }

        /// Any message.
        #[derive(Debug, Clone)]
        pub enum Message<$life> {
            $( #[doc = concat!("[`", stringify!($name), "`].")] $name($name $(<$own>)?), )+
        }

        impl<$life> Message<$life> {
            /// The message of a frame.
            ///
            /// # Errors
            /// If the bytes are none.
            pub fn read(
                frame: $crate::parts::Frame<$life>,
            ) -> Result<Message<$life>, $crate::parts::DecodeError> {
                match Kind::from_code("kind", frame.code)? {
                    $( Kind::$name => frame.read().map(Message::$name), )+
                }
            }

            /// Which one it is.
            #[inline]
            pub const fn kind(&self) -> Kind {
                match self {
                    $( Message::$name(_) => Kind::$name, )+
                }
            }

            /// How many bytes it has, without a frame.
            #[inline]
            pub fn bytes(&self) -> usize {
                match self {
                    $( Message::$name(message) => $crate::parts::Value::bytes(message), )+
                }
            }

            /// Appends its bytes, without a frame.
            #[inline]
            pub fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $( Message::$name(message) => $crate::parts::Value::put(message, out), )+
                }
            }
        }

        /// The table of messages, in its order.
        pub const ROWS: &[$crate::parts::Row] = &[$(
            $crate::parts::Row {
                name: stringify!($name),
                code: $code,
                ways: &[$( &[$($crate::parts::Party::$hop),+] ),+],
                describe: |types| {
                    <$name as $crate::parts::Value<'static>>::describe(types);
                },
                example: <$name as $crate::parts::Value<'static>>::example,
                again: |bytes| {
                    let read = $crate::parts::decode::<$name>(bytes);
                    read.map(|message| $crate::parts::encode(&message))
                },
            }
        ),+];
    };
}
