//! The lines between controller and agent.

#[path = "../../crates/measure/lab/src/agent/lines.rs"]
mod lines;
#[path = "../../crates/measure/lab/src/agent/samples.rs"]
mod samples;

use lines::{Line, Lines};
use nm_model::agent::{Stage, Task, Token, Work};
use nm_model::probe::PingpongSpec;
use nm_model::{Answer, Mode, Protocol, Request, Side, Stack};

/// What arrives at either end: each line is a request, an answer, both or neither; what was decoded
/// is decoded again.
pub fn agent_lines(bytes: &[u8]) {
    let mut lines = Lines::new(bytes);
    while let Line::Text(line) = lines.next() {
        if let Ok(request) = serde_json::from_str::<Request>(&line) {
            let again = serde_json::to_string(&request).expect("a request has a text");
            serde_json::from_str::<Request>(&again).expect("its text is a request");
        }
        if let Ok(answer) = serde_json::from_str::<Answer>(&line) {
            let again = serde_json::to_string(&answer).expect("an answer has a text");
            serde_json::from_str::<Answer>(&again).expect("its text is an answer");
        }
        if let Some(samples) = samples::decode(&line) {
            assert_eq!(samples::decode(&samples::encode(&samples)), Some(samples));
        }
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let work = Work::Pingpong(PingpongSpec::default().of_size(64));
    let stack = Stack::new(Protocol::Tcp, Mode::Spin);
    let token = Token([7; 16]);
    let task = Task { stack, cpus: vec![0, 1], work, seed: 1, raw_samples: true, token };
    let listen = Stage::Listen { address: "127.0.0.1".to_string() };
    let connect = Stage::Connect { addresses: vec!["127.0.0.1:5000".to_string()] };
    let mut requests = vec![Request::Describe, Request::Run, Request::Cancel, Request::Bye];
    for stage in [listen, connect] {
        let task = Box::new(task.clone());
        requests.push(Request::Prepare { side: Side::Server, task, stage });
    }
    let mut lines: Vec<Vec<u8>> = requests.iter().flat_map(serde_json::to_vec).collect();
    lines.push(samples::encode(&[1, 2, 4_000_000_000]).into_bytes());
    lines.push(lines.join(&b'\n'));
    lines
}
