//! Writes the inputs to begin from: `seeds FOLDER` fills `FOLDER/TARGET`.

use std::path::PathBuf;

use nearmetal_fuzz::TARGETS;

fn main() -> std::io::Result<()> {
    let corpus = std::env::args_os().nth(1).map(PathBuf::from);
    let corpus = corpus.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus"));
    for target in TARGETS {
        let folder = corpus.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, bytes) in (target.seeds)().iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
        }
    }
    Ok(())
}
