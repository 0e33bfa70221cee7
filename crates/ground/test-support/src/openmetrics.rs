//! Whether a text is one of OpenMetrics (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

/// Reads OpenMetrics text by the rules of the specification that an exporter of gauges and counters
/// can break; how many samples it has.
///
/// # Errors
/// If a rule is broken, with the line.
pub fn check(text: &str) -> Result<usize, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("no EOF at the end")?;
    let (mut family, mut unit, mut n_samples) = (String::new(), String::new(), 0);
    let mut suffix = "";
    let mut seen: Vec<String> = vec![];
    let mut lines: Vec<&str> = vec![];
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (kind, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let value = words.next().unwrap_or("");
            match kind {
                "TYPE" if ["gauge", "counter"].contains(&value) && !seen.contains(&name.into()) => {
                    (family, suffix) = (name.to_string(), "");
                    if value == "counter" {
                        suffix = "_total";
                    }
                    seen.push(family.clone());
                    unit.clear();
                }
                "UNIT" if name == family && name.ends_with(&format!("_{value}")) => {
                    unit = value.to_string();
                }
                "HELP" if name == family && !value.is_empty() => {}
                _ => return Err(format!("bad comment: {line}")),
            }
            continue;
        }
        check_sample(line, &format!("{family}{suffix}"))?;
        let series = line.rsplit_once(' ').map_or("", |(series, _)| series);
        if lines.contains(&series) {
            return Err(format!("twice: {series}"));
        }
        lines.push(series);
        n_samples += 1;
    }
    Ok(n_samples)
}

/// `name{label="value",…} number`, the name being the family's.
fn check_sample(line: &str, family: &str) -> Result<(), String> {
    let bad = || format!("bad sample: {line}");
    let rest = line.strip_prefix(family).ok_or_else(bad)?;
    let mut letters = rest.strip_prefix('{').unwrap_or(rest).chars();
    while rest.starts_with('{') {
        let name: String = letters.by_ref().take_while(|c| *c != '=').collect();
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name || letters.next() != Some('"') {
            return Err(bad());
        }
        loop {
            match letters.next().ok_or_else(bad)? {
                '\\' => {
                    letters.next().filter(|c| "\\\"n".contains(*c)).ok_or_else(bad)?;
                }
                '"' => break,
                _ => {}
            }
        }
        match letters.next().ok_or_else(bad)? {
            ',' => {}
            '}' => break,
            _ => return Err(bad()),
        }
    }
    let number = letters.as_str().strip_prefix(' ').ok_or_else(bad)?;
    number.parse::<f64>().map(|_| ()).map_err(|_| bad())
}
