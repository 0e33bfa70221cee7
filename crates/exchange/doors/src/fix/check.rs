//! Checks a message by the dictionary.

use super::dictionary::{Dictionary, Kind, dictionary};
use super::message::Message;
use super::{tag, time};
use crate::decimal::Decimal;

/// SessionRejectReason, field 373.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultReason {
    /// No such tag.
    InvalidTag = 0,
    /// A field is missing.
    RequiredMissing = 1,
    /// The field is not one of this type of message.
    NotForType = 2,
    /// A field has no value.
    NoValue = 4,
    /// The value is not one of those that there are.
    WrongValue = 5,
    /// The value has not the form that it must have.
    WrongFormat = 6,
    /// CompIDs are not those of the session.
    CompId = 9,
    /// SendingTime is wrong.
    SendingTime = 10,
    /// No such type of message.
    WrongType = 11,
    /// A field stands twice.
    Repeated = 13,
    /// A field of the header behind the header.
    Order = 14,
    /// A field of a group at a wrong place.
    GroupOrder = 15,
    /// A group has another number of entries.
    GroupCount = 16,
    /// The application's version is not supported.
    Version = 18,
    /// Something else.
    Other = 99,
}

impl FaultReason {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            FaultReason::InvalidTag => "Invalid tag number",
            FaultReason::RequiredMissing => "Required tag missing",
            FaultReason::NotForType => "Tag not defined for this message type",
            FaultReason::NoValue => "Tag specified without a value",
            FaultReason::WrongValue => "Value is incorrect (out of range) for this tag",
            FaultReason::WrongFormat => "Incorrect data format for value",
            FaultReason::CompId => "CompID problem",
            FaultReason::SendingTime => "SendingTime accuracy problem",
            FaultReason::WrongType => "Invalid MsgType",
            FaultReason::Repeated => "Tag appears more than once",
            FaultReason::Order => "Tag specified out of required order",
            FaultReason::GroupOrder => "Repeating group fields out of order",
            FaultReason::GroupCount => "Incorrect NumInGroup count for repeating group",
            FaultReason::Version => "Invalid or unsupported application version",
            FaultReason::Other => "Other",
        }
    }
}

/// Why a message is rejected by the session layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Why.
    pub reason: FaultReason,
    /// The field that is meant.
    pub tag: Option<String>,
    /// What is added to the sentence.
    pub detail: Option<String>,
}

impl Fault {
    /// A fault of a field.
    pub fn of(reason: FaultReason, tag: u32) -> Fault {
        Fault { reason, tag: Some(tag.to_string()), detail: None }
    }

    /// A fault of no single field.
    pub fn because(reason: FaultReason, detail: &str) -> Fault {
        Fault { reason, tag: None, detail: Some(detail.to_string()) }
    }

    /// In a sentence.
    pub fn text(&self) -> String {
        match (&self.tag, &self.detail) {
            (_, Some(detail)) => format!("{}: {detail}", self.reason.text()),
            (Some(tag), None) => format!("{}, field={tag}", self.reason.text()),
            (None, None) => self.reason.text().to_string(),
        }
    }
}

/// Checks all fields of a message of a type that the door takes.
///
/// # Errors
/// The first fault.
pub fn check(message: &Message) -> Result<(), Fault> {
    let dictionary = dictionary();
    if let Some(bad) = &message.bad_tag {
        return Err(Fault { tag: Some(bad.clone()), ..Fault::of(FaultReason::InvalidTag, 0) });
    }
    let Some(spec) = dictionary.spec(message.kind()) else {
        return Err(Fault::of(FaultReason::WrongType, tag::MSG_TYPE));
    };
    check_order(message, dictionary)?;
    for (tag, value) in message.fields() {
        if !dictionary.is_field(tag) {
            return Err(Fault::of(FaultReason::InvalidTag, tag));
        }
        if value.is_empty() {
            return Err(Fault::of(FaultReason::NoValue, tag));
        }
        if !(dictionary.is_header(tag) || dictionary.is_trailer(tag) || spec.has(tag)) {
            return Err(Fault::of(FaultReason::NotForType, tag));
        }
        check_value(dictionary.kind(tag), value).map_err(|reason| Fault::of(reason, tag))?;
    }
    Groups { dictionary, fields: message.fields().collect(), at: 0 }.check_body()?;
    let required = dictionary.required_header().iter().chain(&spec.required);
    match required.copied().find(|tag| message.get(*tag).is_none()) {
        Some(missing) => Err(Fault::of(FaultReason::RequiredMissing, missing)),
        None => Ok(()),
    }
}

/// The header comes first, and the trailer last.
fn check_order(message: &Message, dictionary: &Dictionary) -> Result<(), Fault> {
    let mut part = 0;
    for (tag, _) in message.fields() {
        let of_tag = match (dictionary.is_header(tag), dictionary.is_trailer(tag)) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 1,
        };
        if of_tag < part {
            return Err(Fault::of(FaultReason::Order, tag));
        }
        part = of_tag;
    }
    Ok(())
}

/// Whether a value has its form.
fn check_value(kind: Kind, value: &[u8]) -> Result<(), FaultReason> {
    if kind == Kind::Data {
        return Ok(());
    }
    let text = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(is_printable));
    let Some(text) = text else { return Err(FaultReason::WrongFormat) };
    let digits = |text: &str| text.len() < 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_formed = match kind {
        Kind::Int => {
            let rest = text.strip_prefix('-').unwrap_or(text);
            !rest.is_empty() && digits(rest)
        }
        Kind::Count => digits(text),
        Kind::Decimal => Decimal::parse(text).is_some(),
        Kind::Bool => matches!(text, "Y" | "N"),
        Kind::Time => time::parse(text).is_some(),
        Kind::Text | Kind::Data => true,
        Kind::Codes(codes) => {
            let is_listed = codes.split(' ').any(|code| code == text);
            return if is_listed { Ok(()) } else { Err(FaultReason::WrongValue) };
        }
    };
    if is_formed { Ok(()) } else { Err(FaultReason::WrongFormat) }
}

fn is_printable(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

/// Goes through the fields, with those of groups where they belong.
struct Groups<'a> {
    dictionary: &'a Dictionary,
    fields: Vec<(u32, &'a [u8])>,
    at: usize,
}

impl Groups<'_> {
    /// Fields outside of groups stand once; those of a group stand in it.
    fn check_body(&mut self) -> Result<(), Fault> {
        let mut seen = std::collections::HashSet::new();
        while let Some((tag, _)) = self.fields.get(self.at).copied() {
            if !seen.insert(tag) {
                return Err(Fault::of(FaultReason::Repeated, tag));
            }
            self.at += 1;
            if self.dictionary.group(tag).is_some() {
                self.check_group(tag)?;
            }
        }
        Ok(())
    }

    /// The entries of a group, whose number was just passed.
    fn check_group(&mut self, count_tag: u32) -> Result<(), Fault> {
        let Some(members) = self.dictionary.group(count_tag) else { return Ok(()) };
        let (_, count) = self.fields[self.at - 1];
        let expected = std::str::from_utf8(count).ok().and_then(|it| it.parse::<usize>().ok());
        let mut entries = 0;
        let mut seen = vec![];
        while let Some((tag, _)) = self.fields.get(self.at).copied() {
            if !members.contains(&tag) {
                break;
            }
            if tag == members[0] {
                entries += 1;
                seen.clear();
            } else if entries == 0 || seen.contains(&tag) {
                return Err(Fault::of(FaultReason::GroupOrder, tag));
            }
            seen.push(tag);
            self.at += 1;
            if self.dictionary.group(tag).is_some() {
                self.check_group(tag)?;
            }
        }
        match expected == Some(entries) {
            true => Ok(()),
            false => Err(Fault::of(FaultReason::GroupCount, count_tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::seal;
    use super::*;

    const HEADER: &str = "34=2|49=A|56=B|52=20261129-16:00:00|";

    fn checked(kind: &str, body: &str) -> Result<(), (FaultReason, String)> {
        let fields = format!("35={kind}|{HEADER}{body}").replace('|', "\u{1}");
        let message = Message::parse(&seal("FIX.4.4", &fields)).unwrap();
        check(&message).map_err(|fault| (fault.reason, fault.tag.unwrap_or_default()))
    }

    fn order(more: &str) -> Result<(), (FaultReason, String)> {
        checked("D", &format!("11=a|55=X|54=1|40=2|60=20261129-16:00:00|{more}"))
    }

    #[test]
    fn each_reason_names_its_field() {
        use FaultReason::*;
        assert_eq!(order("38=10|44=1.5|453=1|448=p|447=D|452=1|"), Ok(()));
        assert_eq!(order("38=002000.00|"), Ok(()));
        for (more, reason, tag) in [
            ("999=1|", InvalidTag, "999"),
            ("0=1|", InvalidTag, "0"),
            ("-1=1|", InvalidTag, "-1"),
            ("5000=1|", InvalidTag, "5000"),
            ("112=x|", NotForType, "112"),
            ("58=|", NoValue, "58"),
            ("21=4|", WrongValue, "21"),
            ("167=BOO|", WrongValue, "167"),
            ("38=+200.00|", WrongFormat, "38"),
            ("38=1e3|", WrongFormat, "38"),
            ("126=20261129-1:00:00|", WrongFormat, "126"),
            ("114=y|", WrongFormat, "114"),
            ("58=\u{e9}|", WrongFormat, "58"),
            ("50=x|", Order, "50"),
            ("40=1|", Repeated, "40"),
            ("386=3|336=a|336=b|", GroupCount, "386"),
            ("386=1|336=a|336=b|", GroupCount, "386"),
            ("453=1|447=D|448=p|", GroupOrder, "447"),
            ("453=1|448=p|447=D|447=D|", GroupOrder, "447"),
            ("453=1|448=p|802=1|803=1|523=x|", GroupOrder, "803"),
            ("448=p|453=1|", GroupCount, "453"),
        ] {
            assert_eq!(order(more), Err((reason, tag.to_string())), "{more}");
        }
        assert_eq!(checked("D", "11=a|54=1|40=2|"), Err((RequiredMissing, "55".to_string())));
        assert_eq!(checked("0", "55=X|"), Err((NotForType, "55".to_string())));
        assert_eq!(checked("*", ""), Err((WrongType, "35".to_string())));
        assert_eq!(order("454=0|"), Ok(()), "a group without entries");
        assert_eq!(order("453=1|448=p|802=2|523=x|803=1|523=y|803=2|"), Ok(()));
    }

    #[test]
    fn a_header_lacks_nothing() {
        let fields = "35=0\u{1}34=2\u{1}49=A\u{1}52=20261129-16:00:00\u{1}";
        let message = Message::parse(&seal("FIX.4.4", fields)).unwrap();
        assert_eq!(check(&message), Err(Fault::of(FaultReason::RequiredMissing, 56)));
    }

    #[test]
    fn a_fault_is_a_sentence() {
        let of_field = Fault::of(FaultReason::WrongFormat, 38);
        assert_eq!(of_field.text(), "Incorrect data format for value, field=38");
        let other = Fault::because(FaultReason::Other, "the session is logged on already");
        assert_eq!(other.text(), "Other: the session is logged on already");
    }
}
