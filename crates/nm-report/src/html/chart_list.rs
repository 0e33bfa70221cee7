//! The charts, folded by kind and environment.

use maud::{Markup, html};

use super::charts::Section;
use super::page::folded;
use crate::units;

/// All charts: each kind under its heading.
pub fn charts(sections: &[Section]) -> Markup {
    html! {
        @for section in sections {
            div.kind id=(section.anchor()) {
                h3 { (section.title) }
                p.reading { (section.reading) }
                @let n_charts = section.figures.len();
                (folded(&units::plural(n_charts, "chart", "charts"), &html! {
                    @for figure in &section.figures { (figure.draw()) }
                }))
            }
        }
    }
}
