//! A tree of elements and its text.

/// An element of a document.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    text: Option<String>,
    children: Vec<Element>,
}

/// An element without content.
pub(crate) fn element(name: &'static str) -> Element {
    Element { name, attributes: vec![], text: None, children: vec![] }
}

impl Element {
    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Element {
        self.attributes.push((name, value.to_string()));
        self
    }

    pub(crate) fn holding(mut self, text: impl ToString) -> Element {
        self.text = Some(text.to_string());
        self
    }

    pub(crate) fn of(mut self, children: impl IntoIterator<Item = Element>) -> Element {
        self.children.extend(children);
        self
    }

    /// The text of the element and all below it, two blanks for each level.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, 0);
        text
    }

    fn write(&self, out: &mut String, level: usize) {
        let (indent, name) = ("  ".repeat(level), self.name);
        *out += &format!("{indent}<{name}");
        for (attribute, value) in &self.attributes {
            *out += &format!(" {attribute}='{}'", escaped(value));
        }
        match &self.text {
            Some(text) => *out += &format!(">{}</{name}>\n", escaped(text)),
            None if self.children.is_empty() => *out += "/>\n",
            None => {
                *out += ">\n";
                for child in &self.children {
                    child.write(out, level + 1);
                }
                *out += &format!("{indent}</{name}>\n");
            }
        }
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_xml_is_escaped() {
        let text = element("a").with("b", "<'\"&>").of([element("c").holding("x & y")]).to_text();
        assert_eq!(text, "<a b='&lt;&apos;&quot;&amp;&gt;'>\n  <c>x &amp; y</c>\n</a>\n");
    }
}
