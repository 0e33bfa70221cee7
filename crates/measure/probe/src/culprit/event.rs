//! The kernel's events that tell what runs on a CPU, read from the records of its tracepoints.

use std::collections::BTreeMap;
use std::io;

use nm_sys::tracepoints::{Field, Tracepoints};

/// A thread's name as the scheduler has it.
pub type ThreadName = [u8; 16];

/// One event of a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The scheduler runs another thread.
    Switch { tid: u32, name: ThreadName },
    /// The handler of an interrupt line begins.
    Line { number: u32, name: String },
    /// An interrupt begins that has no line: timer, calls of other CPUs.
    Vector(Vector),
    /// A softirq of this number begins.
    Softirq(u8),
    /// The function of a timer begins.
    Timer { function: u64 },
    /// A function begins that another CPU asked for.
    Call { function: u64 },
    /// The innermost of these five ends.
    End,
    /// The thread begins a piece of work.
    Work { tid: u32, function: u64 },
    /// And ends it.
    WorkEnd { tid: u32 },
    /// Events before this one were lost.
    Lost,
}

/// Interrupts without a line, as the kernel's tracepoints name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vector {
    LocalTimer,
    Reschedule,
    Call,
    CallSingle,
    PlatformCall,
    Thermal,
    MachineCheck,
    Error,
    Spurious,
}

impl Vector {
    /// Not the work that the kernel gives itself (`irq_work`): its end may not be traced.
    const ALL: [(Vector, &'static str); 9] = [
        (Vector::LocalTimer, "local_timer"),
        (Vector::Reschedule, "reschedule"),
        (Vector::Call, "call_function"),
        (Vector::CallSingle, "call_function_single"),
        (Vector::PlatformCall, "x86_platform_ipi"),
        (Vector::Thermal, "thermal_apic"),
        (Vector::MachineCheck, "threshold_apic"),
        (Vector::Error, "error_apic"),
        (Vector::Spurious, "spurious_apic"),
    ];
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Switch { tid: Field, name: Field },
    Line { number: Field, name: Field },
    Vector(Vector),
    Softirq(Field),
    Timer(Field),
    Call(Field),
    End,
    Work { tid: Field, function: Field },
    WorkEnd { tid: Field },
}

/// The tracepoints that this kernel has of those that are used, by their numbers.
#[derive(Debug, Clone)]
pub struct Shapes(BTreeMap<u16, Shape>);

impl Shapes {
    /// Asks the kernel.
    ///
    /// # Errors
    /// If it cannot be traced, or does not tell which thread runs.
    pub fn read(points: &Tracepoints) -> io::Result<Shapes> {
        let mut shapes = BTreeMap::new();
        let switch = points.format("sched/sched_switch")?;
        let field = |name| switch.field(name).ok_or(io::ErrorKind::InvalidData);
        let shape = Shape::Switch { tid: field("next_pid")?, name: field("next_comm")? };
        shapes.insert(switch.id, shape);
        // Not every kernel and architecture has the others.
        let mut add = |point: &str, fields: &[&str], shape: &dyn Fn(&[Field]) -> Shape| {
            let Ok(format) = points.format(point) else { return };
            let fields: Option<Vec<Field>> = fields.iter().map(|name| format.field(name)).collect();
            if let Some(fields) = fields {
                shapes.insert(format.id, shape(&fields));
            }
        };
        add("irq/irq_handler_entry", &["irq", "name"], &|of| Shape::Line {
            number: of[0],
            name: of[1],
        });
        add("irq/softirq_entry", &["vec"], &|of| Shape::Softirq(of[0]));
        add("timer/hrtimer_expire_entry", &["function"], &|of| Shape::Timer(of[0]));
        add("timer/timer_expire_entry", &["function"], &|of| Shape::Timer(of[0]));
        add("csd/csd_function_entry", &["func"], &|of| Shape::Call(of[0]));
        let ends =
            ["irq/irq_handler", "irq/softirq", "csd/csd_function"].map(|of| format!("{of}_exit"));
        let timers = ["hrtimer", "timer"].map(|of| format!("timer/{of}_expire_exit"));
        for point in ends.iter().chain(&timers) {
            add(point, &[], &|_| Shape::End);
        }
        for (vector, name) in Vector::ALL {
            add(&format!("irq_vectors/{name}_entry"), &[], &|_| Shape::Vector(vector));
            add(&format!("irq_vectors/{name}_exit"), &[], &|_| Shape::End);
        }
        let work = ["common_pid", "function"];
        add("workqueue/workqueue_execute_start", &work, &|of| Shape::Work {
            tid: of[0],
            function: of[1],
        });
        let end = &["common_pid"];
        add("workqueue/workqueue_execute_end", end, &|of| Shape::WorkEnd { tid: of[0] });
        Ok(Shapes(shapes))
    }

    /// The numbers of the tracepoints.
    pub fn ids(&self) -> Vec<u16> {
        self.0.keys().copied().collect()
    }

    /// The event of a record; none if it is none of these.
    pub fn event(&self, record: &[u8]) -> Option<Event> {
        let id = u16::from_le_bytes(record.get(..2)?.try_into().ok()?);
        let number = |field: Field| field.number(record);
        let tid = |field: Field| u32::try_from(field.number(record)?).ok();
        Some(match *self.0.get(&id)? {
            Shape::Switch { tid: of, name } => {
                let text = name.text(record)?;
                let mut name = ThreadName::default();
                let length = text.len().min(name.len());
                name[..length].copy_from_slice(&text[..length]);
                Event::Switch { tid: tid(of)?, name }
            }
            Shape::Line { number: of, name } => {
                let name = String::from_utf8_lossy(name.text(record)?).into_owned();
                Event::Line { number: tid(of)?, name }
            }
            Shape::Vector(vector) => Event::Vector(vector),
            Shape::Softirq(of) => Event::Softirq(u8::try_from(number(of)?).ok()?),
            Shape::Timer(of) => Event::Timer { function: number(of)? },
            Shape::Call(of) => Event::Call { function: number(of)? },
            Shape::End => Event::End,
            Shape::Work { tid: of, function } => {
                Event::Work { tid: tid(of)?, function: number(function)? }
            }
            Shape::WorkEnd { tid: of } => Event::WorkEnd { tid: tid(of)? },
        })
    }
}
