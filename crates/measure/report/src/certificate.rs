//! Certificates as files, and what a check of one found as text.

use jiff::Timestamp;
use nm_model::certificate::{
    BYTES_MAX, Certificate, CertificateCheck, EquivalenceFigure, SCHEMA_VERSION,
};
use nm_model::verdict::Relation;

use crate::baseline_folder::fault;
use crate::comparison::relation_tone;
use crate::comparison_brief::{SENTENCE_LINES_MAX, sentence};
use crate::style::Style;
use crate::table::{Column, Table};
use crate::units;

/// Most figures that a terminal is shown.
const FIGURES_MAX: usize = 20;

/// Why a text is no certificate, or cannot be one.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Not JSON, or with other fields.
    #[error("it is no certificate: {0}")]
    Damaged(String),
    /// Of another version.
    #[error("it has version {0} of the certificate format; this nearmetal reads {SCHEMA_VERSION}")]
    Version(u32),
    /// Too many rows or rounds.
    #[error(
        "the certificate would have {0} bytes, {BYTES_MAX} are the most; mark fewer rows of the \
         plan as primary"
    )]
    TooLarge(usize),
}

/// A certificate as its file has it.
///
/// # Errors
/// [`CertificateError::TooLarge`].
pub fn json(certificate: &Certificate) -> Result<String, CertificateError> {
    let text = serde_json::to_string_pretty(certificate);
    let text = text.expect("numbers, texts and lists can always be written as JSON") + "\n";
    match text.len() as u64 > BYTES_MAX {
        true => Err(CertificateError::TooLarge(text.len())),
        false => Ok(text),
    }
}

/// The one field that every version of the format has.
#[derive(serde::Deserialize)]
struct Version {
    schema: u32,
}

/// Reads a certificate, and the time of its end.
///
/// # Errors
/// If it is damaged, of another version, or holds what no run has.
pub fn parse(text: &str) -> Result<(Certificate, Timestamp), CertificateError> {
    let damaged = |error: serde_json::Error| CertificateError::Damaged(error.to_string());
    let Version { schema } = serde_json::from_str(text).map_err(damaged)?;
    if schema != SCHEMA_VERSION {
        return Err(CertificateError::Version(schema));
    }
    let certificate: Certificate = serde_json::from_str(text).map_err(damaged)?;
    if let Some(fault) = fault(&certificate.run) {
        return Err(CertificateError::Damaged(fault));
    }
    if !(0.0..=1000.0).contains(&certificate.margin_percent) {
        return Err(CertificateError::Damaged("its margin is not 0 to 1000 %".to_string()));
    }
    match certificate.expires.parse() {
        Ok(expires) => Ok((certificate, expires)),
        Err(_) => Err(CertificateError::Damaged("its end is no time".to_string())),
    }
}

/// A check for a terminal: the deciding sentence, what else was checked, and the figures.
pub fn text(check: &CertificateCheck, style: &Style) -> String {
    let word = check.outcome.name().to_uppercase();
    let mut text = style.bold(&style.tone(check.outcome.into(), &word));
    let mut reasons = check.reasons.iter();
    let first = reasons.next().map(|one| format!(": {one}")).unwrap_or_default();
    text += &sentence(&first, 0, 2 * SENTENCE_LINES_MAX, style);
    text.extend(reasons.map(|one| sentence(one, 2, 2 * SENTENCE_LINES_MAX, style)));
    let figures = check.equivalence.iter().flat_map(|one| &one.figures);
    let figures: Vec<&EquivalenceFigure> = figures.collect();
    if !figures.is_empty() {
        text += "\n";
        text += &table(&figures, style);
    }
    text
}

fn table(figures: &[&EquivalenceFigure], style: &Style) -> String {
    let columns = [
        Column::text("figure"),
        Column::figure("certified"),
        Column::figure("run"),
        Column::figure("ratio"),
        Column::figure("90 % interval"),
        Column::text("is"),
    ];
    let mut table = Table::new(String::new(), columns);
    for one in figures.iter().take(FIGURES_MAX) {
        let metric = one.key.metric;
        table.push(
            relation_tone(one.relation),
            vec![
                one.key.to_string(),
                units::figure(metric, one.certified),
                units::figure(metric, one.value),
                units::or_not_available(one.ratio, |ratio| format!("{ratio:.2}")),
                units::or_not_available(one.interval.map(|it| it.high), |high| {
                    let low = one.interval.map_or(high, |it| it.low);
                    format!("{low:.2} to {high:.2}")
                }),
                relation(one.relation).to_string(),
            ],
        );
    }
    let n_more = figures.len().saturating_sub(FIGURES_MAX);
    let more = match n_more {
        0 => String::new(),
        n => format!("  and {n} more in --format json\n"),
    };
    table.to_text(style) + &more
}

fn relation(relation: Relation) -> &'static str {
    match relation {
        Relation::Worse => "worse",
        Relation::Better => "better",
        Relation::Equivalent => "equivalent",
        Relation::Differs | Relation::Unclear => "undecided",
    }
}
