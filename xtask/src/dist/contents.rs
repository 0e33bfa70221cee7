//! Which file lies where in each form of a package.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::build::Built;
use super::tarball::{Entry, gzip};
use crate::shell;

/// Where zsh looks for completions of packages.
pub(super) const DEBIAN: &str = "usr/share/zsh/vendor-completions";
/// The same on systems with RPM.
pub(super) const RPM: &str = "usr/share/zsh/site-functions";

/// Man pages and completions, which are the same for all processors.
pub(super) struct Texts {
    /// File name and text of each page.
    pages: Vec<(String, Vec<u8>)>,
    bash: Vec<u8>,
    zsh: Vec<u8>,
    fish: Vec<u8>,
}

/// Lets the program write its man pages and completions.
pub(super) fn texts(program: &Path) -> Result<Texts> {
    let completions = |name: &str| {
        let (text, is_ok) = shell::output(&format!("{} completions {name}", program.display()))?;
        if !is_ok {
            bail!("`nearmetal completions {name}` failed: {text}");
        }
        Ok(text.into_bytes())
    };
    let folder = shell::root().join("target/dist-man");
    let _ = fs::remove_dir_all(&folder);
    shell::run(&format!("{} man --out {}", program.display(), folder.display()))?;
    let mut pages = fs::read_dir(&folder)?
        .map(|entry| {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, fs::read(&path)?))
        })
        .collect::<Result<Vec<_>>>()?;
    pages.sort();
    let (bash, zsh, fish) = (completions("bash")?, completions("zsh")?, completions("fish")?);
    Ok(Texts { pages, bash, zsh, fish })
}

/// Everything that is packed for one processor.
pub(super) struct Contents<'a> {
    program: Vec<u8>,
    library: Vec<u8>,
    /// Licences, README and Grafana's dashboard.
    documents: Vec<(&'static str, Vec<u8>)>,
    texts: &'a Texts,
}

impl Contents<'_> {
    pub(super) fn new<'a>(built: &Built, texts: &'a Texts) -> Result<Contents<'a>> {
        let read =
            |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let documents = [
            ("LICENSE-APACHE", "LICENSE-APACHE"),
            ("LICENSE-MIT", "LICENSE-MIT"),
            ("README.md", "README.md"),
            ("grafana-dashboard.json", "dashboards/nearmetal.json"),
        ]
        .into_iter()
        .map(|(name, path)| Ok((name, read(&shell::root().join(path))?)))
        .collect::<Result<_>>()?;
        Ok(Contents {
            program: read(&built.program)?,
            library: read(&built.library)?,
            documents,
            texts,
        })
    }

    /// The files of an archive that is unpacked anywhere: the library lies beside the program.
    pub(super) fn archive(&self, folder: &str) -> Vec<Entry> {
        let mut files = vec![
            Entry::file(format!("{folder}/nearmetal"), 0o755, self.program.clone()),
            Entry::file(format!("{folder}/libnm_accel.so"), 0o644, self.library.clone()),
        ];
        for (name, bytes) in &self.documents {
            files.push(Entry::file(format!("{folder}/{name}"), 0o644, bytes.clone()));
        }
        for (name, bytes) in &self.texts.pages {
            files.push(Entry::file(format!("{folder}/man1/{name}"), 0o644, bytes.clone()));
        }
        let Texts { bash, zsh, fish, .. } = self.texts;
        for (name, bytes) in
            [("nearmetal.bash", bash), ("_nearmetal", zsh), ("nearmetal.fish", fish)]
        {
            files.push(Entry::file(format!("{folder}/completions/{name}"), 0o644, bytes.clone()));
        }
        super::tarball::with_folders(&files)
    }

    /// The files of a package, with zsh's completions in the folder `zsh`.
    pub(super) fn installed(&self, zsh: &str) -> Vec<Entry> {
        let texts = self.texts;
        let plain = |path: String, bytes: &[u8]| Entry::file(path, 0o644, bytes.to_vec());
        let mut files = self.program_and_library();
        for (name, bytes) in &texts.pages {
            let packed = gzip(bytes).expect("memory takes all bytes");
            files.push(plain(format!("usr/share/man/man1/{name}.gz"), &packed));
        }
        files.push(plain(format!("{zsh}/_nearmetal"), &texts.zsh));
        let bash = "usr/share/bash-completion/completions/nearmetal";
        files.push(plain(bash.to_string(), &texts.bash));
        let fish = "usr/share/fish/vendor_completions.d/nearmetal.fish";
        files.push(plain(fish.to_string(), &texts.fish));
        for (name, bytes) in &self.documents {
            files.push(plain(format!("usr/share/doc/nearmetal/{name}"), bytes));
        }
        files
    }

    /// The files of a container image: no shell, no C library.
    pub(super) fn image(&self) -> Vec<Entry> {
        let mut files = self.program_and_library();
        files.push(Entry::folder("tmp", 0o1777));
        files
    }

    fn program_and_library(&self) -> Vec<Entry> {
        vec![
            Entry::file("usr/bin/nearmetal", 0o755, self.program.clone()),
            Entry::file("usr/lib/nearmetal/libnm_accel.so", 0o644, self.library.clone()),
        ]
    }
}
