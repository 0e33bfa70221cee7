//! What to call what ran: functions of the kernel by their names in `/proc/kallsyms`, and those
//! that users meet by plain words.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};

use nm_model::jitter::CulpritKind;

use super::contexts::Context;
use super::event::Vector;

/// Words for the functions that are met often.
const PLAIN: [(&str, &str); 17] = [
    ("tick_nohz_handler", "timer tick"),
    ("tick_sched_timer", "timer tick"),
    ("tick_nohz_highres_handler", "timer tick"),
    ("timerfd_tmrproc", "timerfd"),
    ("it_real_fn", "setitimer"),
    ("posix_timer_fn", "POSIX timer"),
    ("hrtimer_wakeup", "wake-up of a sleeper"),
    ("flush_tlb_func", "TLB shootdown"),
    ("do_flush_tlb_all", "TLB shootdown of all"),
    ("do_kernel_range_flush", "TLB shootdown of the kernel"),
    ("ipi_mb", "membarrier"),
    ("ipi_sync_core", "membarrier"),
    ("do_sync_core", "change of kernel code"),
    ("rps_trigger_softirq", "RPS"),
    ("rcu_exp_handler", "RCU"),
    ("wb_workfn", "writeback"),
    ("vmstat_update", "vmstat"),
];

/// Softirqs in the order of their numbers, as `/proc/softirqs` names them.
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Names of functions of the kernel by their addresses.
#[derive(Debug, Default)]
pub struct Functions(BTreeMap<u64, String>);

impl Functions {
    /// The names of the functions in `contexts`. Where the kernel hides addresses there are none.
    pub fn read<'a>(contexts: impl Iterator<Item = &'a Context>) -> Functions {
        let wanted: BTreeSet<u64> = contexts.filter_map(function).collect();
        match File::open("/proc/kallsyms") {
            Ok(file) if !wanted.is_empty() => Functions::of(BufReader::new(file), &wanted),
            _ => Functions::default(),
        }
    }

    fn of(lines: impl BufRead, wanted: &BTreeSet<u64>) -> Functions {
        let mut names = BTreeMap::new();
        for line in lines.lines().map_while(Result::ok) {
            let mut words = line.split_ascii_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let (Some(address), Some(name)) = (address, words.nth(1)) else { continue };
            if wanted.contains(&address) {
                // Names that the compiler and the kernel put in front of a function say nothing.
                let is_padding = name.starts_with("__pfx_");
                if !is_padding {
                    names.entry(address).or_insert_with(|| name.to_string());
                }
            }
        }
        Functions(names)
    }

    /// What a function is called, with its own name.
    fn text(&self, address: u64) -> String {
        let Some(name) = self.0.get(&address) else { return "a hidden function".to_string() };
        // A compiler may have split a function: `wb_workfn.cold`.
        let own = name.split('.').next().unwrap_or(name);
        let plain = PLAIN.iter().find(|(function, _)| *function == own);
        plain.map_or_else(|| own.to_string(), |(_, plain)| (*plain).to_string())
    }

    /// What `context` is and what it is called.
    pub fn name(&self, context: &Context) -> (CulpritKind, String) {
        match context {
            Context::Thread { name, .. } => {
                let text = name.split(|byte| *byte == 0).next().unwrap_or(&[]);
                (CulpritKind::Thread, String::from_utf8_lossy(text).into_owned())
            }
            Context::Work { function } => (CulpritKind::Work, self.text(*function)),
            Context::Line { number, name } => (CulpritKind::Interrupt, format!("{number} {name}")),
            Context::Vector(vector) => vector_name(*vector),
            Context::Softirq(number) => {
                let name = SOFTIRQS.get(usize::from(*number)).copied();
                let text = name.map_or_else(|| number.to_string(), str::to_string);
                (CulpritKind::Softirq, text)
            }
            Context::Timer { function } => (CulpritKind::Timer, self.text(*function)),
            Context::Call { function } => (CulpritKind::Call, self.text(*function)),
        }
    }
}

fn function(context: &Context) -> Option<u64> {
    match context {
        Context::Work { function } | Context::Timer { function } | Context::Call { function } => {
            Some(*function)
        }
        _ => None,
    }
}

fn vector_name(vector: Vector) -> (CulpritKind, String) {
    let (kind, name) = match vector {
        Vector::LocalTimer => (CulpritKind::Timer, "timer that was early"),
        Vector::Reschedule => (CulpritKind::Call, "reschedule"),
        Vector::Call | Vector::CallSingle => (CulpritKind::Call, "call without a function"),
        Vector::PlatformCall => (CulpritKind::Call, "platform"),
        Vector::Thermal => (CulpritKind::Interrupt, "thermal"),
        Vector::MachineCheck => (CulpritKind::Interrupt, "machine check threshold"),
        Vector::Error => (CulpritKind::Interrupt, "APIC error"),
        Vector::Spurious => (CulpritKind::Interrupt, "spurious"),
    };
    (kind, name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_plain_words_and_hidden_ones_are_not_guessed() {
        let symbols = "00000000000000a0 t __pfx_x\n00000000000000a0 T wb_workfn\n\
            b0 t my_timer.isra.0\t[module]\nnonsense\n";
        let functions = Functions::of(symbols.as_bytes(), &[0xa0, 0xb0, 0xc0].into());
        let name = |function| functions.name(&Context::Work { function }).1;
        assert_eq!(name(0xa0), "writeback");
        assert_eq!(name(0xb0), "my_timer");
        assert_eq!(name(0xc0), "a hidden function");
        let name = |context| functions.name(&context);
        assert_eq!(name(Context::Softirq(3)), (CulpritKind::Softirq, "NET_RX".into()));
        assert_eq!(name(Context::Softirq(99)).1, "99");
        assert_eq!(name(Context::Thread { tid: 1, name: [b'x'; 16] }).1, "x".repeat(16));
    }
}
