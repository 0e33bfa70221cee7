//! Which fields the door knows, in which messages, with which values.
//!
//! It has what the door understands, and not all of FIX. A field that it lacks is refused, rather
//! than ignored, so that no client believes in an instruction that nobody follows.

use std::collections::HashMap;
use std::sync::OnceLock;

/// What a value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number, which may be negative.
    Int,
    /// A number of bytes or entries, or a sequence number.
    Count,
    /// A decimal number.
    Decimal,
    /// `Y` or `N`.
    Bool,
    /// A UTC timestamp.
    Time,
    /// Any printable characters.
    Text,
    /// Any bytes.
    Data,
    /// One of these words.
    Codes(&'static str),
}

/// Fields whose values have a form; those of all others are text.
const KINDS: [(Kind, &[u32]); 6] = [
    (Kind::Int, &[108, 202, 371, 373, 378, 380, 574, 1409]),
    (
        Kind::Count,
        &[
            7, 9, 16, 34, 36, 45, 78, 90, 93, 95, 146, 212, 264, 268, 267, 348, 350, 354, 369, 384,
            386, 453, 454, 627, 789, 802, 1156,
        ],
    ),
    (Kind::Decimal, &[31, 32, 38, 44, 99, 110, 111, 140, 152, 210, 211, 1138]),
    (Kind::Bool, &[43, 97, 114, 121, 123, 141, 266, 464, 547, 570]),
    (Kind::Time, &[42, 52, 60, 122, 126, 168, 629]),
    (Kind::Data, &[89, 91, 96, 213, 349, 351, 355]),
];

/// Fields whose values are in a list.
const CODES: [(u32, &str); 25] = [
    (21, "1 2 3"),
    (40, "1 2 3 4 5 6 7 8 9 A B C D E F G H I J K L M P Q"),
    (47, "A B C D E F H I J K L M N O P R S T U W X Y Z"),
    (54, "1 2 3 4 5 6 7 8 9 A B C D E F G H"),
    (59, "0 1 2 3 4 5 6 7 8 9"),
    (63, "0 1 2 3 4 5 6 7 8 9"),
    (77, "O C R F D N"),
    (98, "0 1 2 3 4 5 6"),
    (167, "CS PS FUT OPT CORP FXSPOT NONE"),
    (263, "0 1 2"),
    (347, "ISO-2022-JP EUC-JP Shift_JIS UTF-8"),
    (385, "S R"),
    (447, "1 2 3 4 5 6 7 8 9 A B C D E F G H I J K L M N O P Q"),
    (456, "1 2 3 4 5 6 7 8 9 A B C D E F G H I J K L M"),
    (460, "1 2 3 4 5 6 7 8 9 10 11 12 13"),
    (528, "A G I P R W"),
    (530, "1 2 3 4 5 6 7"),
    (559, "0 1 2 3 4"),
    (581, "1 2 3 4 6 7 8"),
    (836, "0 1 2 3"),
    (1084, "1 2 3 4"),
    (1094, "1 2 3 4 5 7 8"),
    (1128, "0 1 2 3 4 5 6 7 8 9"),
    (1137, "0 1 2 3 4 5 6 7 8 9"),
    (1409, "0 1 2 3 4 5 6 7 8 9 10"),
];

/// Fields before the body, in any order behind the first three.
const HEADER: &str = "8 9 35 49 56 34 43 50 52 57 90 91 97 115 116 122 128 129 142 143 144 145 \
                      212 213 347 369 627 628 629 630 1128 1129 1156";

/// Fields of the header that each message has.
const HEADER_REQUIRED: [u32; 7] = [8, 9, 35, 49, 56, 34, 52];

/// Fields behind the body.
const TRAILER: &str = "89 93 10";

/// Fields that describe an instrument.
const INSTRUMENT: &str = "48 22 65 167 200 202 207 454 460 461 541";

/// A type, the fields that it must have, and those that it may have; `+` stands for an instrument.
const MESSAGES: [(&str, &str, &str); 17] = [
    ("0", "", "112"),
    ("1", "112", ""),
    ("2", "7 16", ""),
    ("3", "45", "371 372 373 58 354 355 1130 1406"),
    ("4", "36", "123"),
    ("5", "", "58 354 355 1409"),
    ("A", "98 108", "95 96 141 384 464 383 553 554 58 789 925 1137 1400 1401 1402 1409"),
    ("j", "372 380", "45 379 371 58 354 355"),
    (
        "D",
        "11 55 54 60 40",
        "+ 1 15 18 21 38 44 47 58 59 63 64 77 78 81 99 100 110 111 114 117 120 126 140 152 168 210 \
         211 354 355 386 432 423 453 526 528 529 581 583 660 836 1028 1084 1094 1138 1091",
    ),
    ("F", "41 11 55 54 60", "+ 1 37 38 152 58 354 355 453 526 583 660 117"),
    (
        "G",
        "41 11 55 54 60 40",
        "+ 1 15 18 21 37 38 44 47 58 59 63 64 77 78 81 99 100 110 111 114 117 120 126 140 152 168 \
         210 211 354 355 386 432 423 453 526 528 529 581 583 660 836 1028 1084 1094 1138 1091",
    ),
    ("H", "11 55 54", "+ 1 37 453 526 583 660 790 117"),
    ("q", "11 530 60", "+ 55 54 1 58 336 354 355 453 526 583 660 625"),
    ("x", "320 559", "+ 55 15 58 263 336 354 355 386 625"),
    ("V", "262 263 264 267 146", "265 266 286 386 547 812 815"),
    ("e", "324 263 55", "+ 15 336 625"),
    ("g", "335 263", "336 338 339 625"),
];

/// Types that FIX has and the door does not take: answered by a BusinessMessageReject.
const OTHERS: &str = "6 7 8 9 B C E J K L M N P Q R S T W X Y Z a b c d f h i k l m n o p r \
                      s t u v w y z AA AB AC AD AE AF AG AH AI AJ AK AL AM AN AO AP AQ AR AS AT AU \
                      AV AW AX AY AZ BA BB BC BD BE BF BG BH BI BJ BK BL BM BN BO BP BQ BR BS BT \
                      BU BV BW BX BY BZ CA CB CC CD CE CF CG CH";

/// Types of the session layer.
const ADMIN: &str = "0 1 2 3 4 5 A";

/// Groups: the field of their number, and the fields of an entry, the first of which begins it.
const GROUPS: [(u32, &str); 9] = [
    (78, "79 661 736 467 80"),
    (146, "55 48 22 65 167 200 202 207 460 461 541 15"),
    (267, "269"),
    (384, "372 385"),
    (386, "336 625"),
    (453, "448 447 452 802"),
    (454, "455 456"),
    (627, "628 629 630"),
    (802, "523 803"),
];

/// Largest tag of FIX 4.4. A smaller one that no table here has is a field, of another message.
const FIX44_TAG_MAX: u32 = 956;

/// What a type of message may have.
#[derive(Debug, Default)]
pub struct Spec {
    /// Fields that it must have.
    pub required: Vec<u32>,
    optional: Vec<u32>,
}

impl Spec {
    /// Whether a field of the body may be in it, in a group or outside.
    pub fn has(&self, tag: u32) -> bool {
        let is_direct = |tag| self.required.contains(&tag) || self.optional.contains(&tag);
        let mut known = is_direct(tag);
        for (count, group) in &dictionary().groups {
            let is_there = || is_direct(*count) || (*count == 802 && is_direct(453));
            known |= group.contains(&tag) && is_there();
        }
        known
    }
}

/// The tables, made for looking up.
#[derive(Debug)]
pub struct Dictionary {
    kinds: HashMap<u32, Kind>,
    header: Vec<u32>,
    trailer: Vec<u32>,
    specs: HashMap<&'static str, Spec>,
    groups: HashMap<u32, Vec<u32>>,
}

/// The only one there is.
pub fn dictionary() -> &'static Dictionary {
    static DICTIONARY: OnceLock<Dictionary> = OnceLock::new();
    DICTIONARY.get_or_init(Dictionary::new)
}

fn tags(text: &str) -> Vec<u32> {
    let word = |word: &str| -> Vec<u32> {
        match word {
            "+" => tags(INSTRUMENT),
            number => number.parse().into_iter().collect(),
        }
    };
    text.split_whitespace().flat_map(word).collect()
}

impl Dictionary {
    fn new() -> Dictionary {
        let of_kind = |(kind, tags): &(Kind, &[u32])| -> Vec<(u32, Kind)> {
            tags.iter().map(|tag| (*tag, *kind)).collect()
        };
        let mut kinds: HashMap<u32, Kind> = KINDS.iter().flat_map(of_kind).collect();
        kinds.extend(CODES.map(|(tag, codes)| (tag, Kind::Codes(codes))));
        let spec = |(kind, required, optional): (&'static str, &str, &str)| {
            (kind, Spec { required: tags(required), optional: tags(optional) })
        };
        Dictionary {
            kinds,
            header: tags(HEADER),
            trailer: tags(TRAILER),
            specs: MESSAGES.map(spec).into_iter().collect(),
            groups: GROUPS.map(|(count, members)| (count, tags(members))).into_iter().collect(),
        }
    }

    /// What a value of a field looks like.
    pub fn kind(&self, tag: u32) -> Kind {
        self.kinds.get(&tag).copied().unwrap_or(Kind::Text)
    }

    /// Whether a field stands before the body.
    pub fn is_header(&self, tag: u32) -> bool {
        self.header.contains(&tag)
    }

    /// Whether a field stands behind the body.
    pub fn is_trailer(&self, tag: u32) -> bool {
        self.trailer.contains(&tag)
    }

    /// Whether there is a field with this tag.
    pub fn is_field(&self, tag: u32) -> bool {
        (1..=FIX44_TAG_MAX).contains(&tag)
            || self.is_header(tag)
            || self.specs.values().any(|spec| spec.has(tag))
    }

    /// What a type may have; none if the door does not take it.
    pub fn spec(&self, kind: &str) -> Option<&Spec> {
        self.specs.get(kind)
    }

    /// The fields of an entry of a group, by the field of its number.
    pub fn group(&self, tag: u32) -> Option<&[u32]> {
        self.groups.get(&tag).map(Vec::as_slice)
    }

    /// Fields of the header that each message has.
    pub fn required_header(&self) -> &'static [u32] {
        &HEADER_REQUIRED
    }
}

/// Whether FIX has a type of message.
pub fn is_type(kind: &str) -> bool {
    dictionary().spec(kind).is_some() || OTHERS.split_whitespace().any(|other| other == kind)
}

/// Whether a type belongs to the session layer.
pub fn is_admin(kind: &str) -> bool {
    ADMIN.split(' ').any(|admin| admin == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_one_kind_and_each_group_a_number() {
        let listed: usize = KINDS.iter().map(|(_, tags)| tags.len()).sum::<usize>() + CODES.len();
        // 1409 is a number that is in a list.
        assert_eq!(dictionary().kinds.len(), listed - 1);
        for (count, members) in GROUPS {
            assert_eq!(dictionary().kind(count), Kind::Count, "{count}");
            assert!(tags(members).len() == members.split(' ').count(), "{members}");
        }
        for (_, required, optional) in MESSAGES {
            let words = format!("{required} {optional}").split_whitespace().count();
            let instrument = if optional.contains('+') { tags(INSTRUMENT).len() - 1 } else { 0 };
            assert_eq!(tags(required).len() + tags(optional).len(), words + instrument);
        }
    }

    #[test]
    fn a_field_of_a_group_belongs_to_messages_with_the_group() {
        let order = dictionary().spec("D").unwrap();
        assert!([448, 523, 455, 79].into_iter().all(|tag| order.has(tag)));
        let heartbeat = dictionary().spec("0").unwrap();
        assert!(heartbeat.has(112) && !heartbeat.has(448) && !heartbeat.has(58));
    }
}
