//! The charts, folded by kind and environment.

use maud::{Markup, html};

use super::charts::Section;
use super::page::folded;
use crate::units;

/// All charts: each kind under its heading.
pub fn charts(sections: &[Section]) -> Markup {
    html! {
        @for section in sections {
            @let all = section.environments.iter().map(|one| one.figures.len()).sum();
            details.kind id=(section.anchor()) {
                summary { (section.title) ": " (units::plural(all, "chart", "charts")) }
                p.reading { (section.reading) }
                @for one in &section.environments {
                    @let n_charts = units::plural(one.figures.len(), "chart", "charts");
                    (folded(&format!("{}: {n_charts}", one.environment), &html! {
                        @for figure in &one.figures { (figure.draw()) }
                    }))
                }
            }
        }
    }
}
