//! The host as the checks see it.

use std::net::IpAddr;

use nm_model::GuestExecution;
use nm_settings::{SettingId, setting};
use nm_sys::ethtool::Links;
use nm_sys::hostfiles::HostFiles;

/// A host: its files, and for this machine what system calls tell.
#[derive(Debug)]
pub struct View<'a> {
    /// Its files.
    pub files: &'a HostFiles,
    /// Links of this machine; absent for a recorded tree.
    pub links: Option<&'a Links>,
    /// What `SSH_CONNECTION` has.
    pub own_connection: Option<&'a str>,
    /// The kernel that the user named for guests.
    pub named_kernel: Option<&'a str>,
    /// What a timed test of KVM has shown, and its figures; absent if there was none.
    pub timed: Option<(GuestExecution, String)>,
}

impl View<'_> {
    /// Whether this is a tree of files, which may lack what the host has.
    pub(crate) fn is_tree(&self) -> bool {
        self.files.path("/") != std::path::Path::new("/")
    }

    /// Whether the absence of a name in one of these folders says something about the host.
    pub(crate) fn shows(&self, folders: &[&str]) -> bool {
        !self.is_tree() || folders.iter().any(|folder| !self.files.names(folder).is_empty())
    }

    /// The content of a file, or nothing.
    pub(crate) fn text(&self, path: &str) -> String {
        self.files.text(path).unwrap_or_default()
    }

    /// Whether the processor has a feature.
    pub(crate) fn has_flag(&self, name: &str) -> bool {
        let text = self.text("/proc/cpuinfo");
        let flags = text.lines().find(|line| line.starts_with("flags"));
        flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == name))
    }

    /// Whether the processor is one of AMD's.
    pub(crate) fn is_amd(&self) -> bool {
        self.text("/proc/cpuinfo").contains("AuthenticAMD") || self.has_flag("svm")
    }

    /// The value of a word of the kernel's command line; the last one counts.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        let text = self.text("/proc/cmdline");
        let mut words = text.split_whitespace().filter_map(|word| {
            let (one, value) = word.split_once('=').unwrap_or((word, ""));
            (one == name).then(|| value.to_string())
        });
        words.next_back()
    }

    /// The IP addresses of a link, as far as system calls tell.
    pub(crate) fn addresses(&self, link: &str) -> Vec<IpAddr> {
        self.links.map(|links| links.addresses(link)).unwrap_or_default()
    }

    /// Whether a kernel module is loaded, built in, or there to be loaded.
    pub(crate) fn has_module(&self, name: &str) -> bool {
        if self.files.exists(&format!("/sys/module/{name}")) {
            return true;
        }
        self.release_has(&self.text("/proc/sys/kernel/osrelease"), name) == Some(true)
    }

    /// Whether a kernel has a module, built in or as a file; absent if its lists are not there.
    pub(crate) fn release_has(&self, release: &str, name: &str) -> Option<bool> {
        let mut is_known = false;
        let has = ["/lib/modules", "/usr/lib/modules"].iter().any(|folder| {
            ["modules.builtin", "modules.dep"].iter().any(|list| {
                let text = self.text(&format!("{folder}/{release}/{list}"));
                is_known |= !text.is_empty();
                let lines = text.lines().filter_map(|line| line.split(':').next());
                lines.filter_map(|path| path.rsplit('/').next()).any(|file| {
                    let stem = file.split(".ko").next().unwrap_or(file);
                    stem.replace('-', "_") == name.replace('-', "_")
                })
            })
        });
        is_known.then_some(has)
    }
}

/// Whether a setting that is one file of the host is as the catalogue wants it; absent if it could
/// not be read.
pub(crate) fn accepts(view: &View<'_>, id: SettingId) -> Option<bool> {
    let mut files = setting(id).files().into_iter();
    files.find_map(|(path, goal)| goal.accepts(&view.files.text(&path)?))
}
