//! What every page has around its sections: head, policy, style sheet, heading, footer; and the
//! parts that sections are made of.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::words::explained;

/// Nothing may be loaded, sent or run. Styles are part of the page.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE: &str = concat!(include_str!("charts/charts.css"), include_str!("style.css"));

/// A page without its content.
pub struct Page<'a> {
    /// Title of the window.
    pub title: String,
    /// What kind of page it is, and of what: `qualification report of 20261122T062301Z-vm`.
    pub kind: String,
    /// Heading.
    pub heading: &'a str,
    /// Anchor of the first section, for the link that skips the header.
    pub first: &'a str,
    /// What stands at the end.
    pub footer: Markup,
}

/// A line of the list of contents.
pub struct Entry {
    /// Anchor of a section.
    pub anchor: &'static str,
    /// Its heading.
    pub title: &'static str,
}

impl Page<'_> {
    /// The page with its sections; `data` goes to the end of the body.
    pub fn with(&self, sections: &Markup, data: &Markup) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    a.skip href=(format!("#{}", self.first)) { "Skip the heading" }
                    header {
                        h1 { (self.heading) }
                        p.brand { b { "nearmetal" } " " (self.kind) }
                    }
                    main { (sections) }
                    footer { (self.footer) }
                    (data)
                }
            }
        };
        page.into_string()
    }
}

/// Links to the sections of a page.
pub fn contents(entries: &[&Entry]) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul {
                @for entry in entries {
                    li { a href=(format!("#{}", entry.anchor)) { (entry.title) } }
                }
            }
        }
    }
}

/// A section with its heading.
pub fn section(anchor: &str, title: &str, content: &Markup) -> Markup {
    let heading = format!("{anchor}-h");
    html! {
        section id=(anchor) aria-labelledby=(heading) {
            h2 id=(heading) { (title) }
            (content)
        }
    }
}

/// How to read a section, folded.
pub fn reading(text: &str) -> Markup {
    folded("How to read this", &html! { p.reading { (explained(text)) } })
}

/// Content that is shown when its heading is chosen, and on paper.
pub fn folded_on_screen(heading: &str, content: &Markup) -> Markup {
    html! { details.paper { summary { (heading) } (content) } }
}

/// Content that is shown when its heading is chosen.
pub fn folded(heading: &str, content: &Markup) -> Markup {
    html! { details { summary { (heading) } (content) } }
}
