//! Options of `lab`.

pub mod export;
pub mod image;
pub mod plan;
pub mod run;
pub mod undo;

use clap::Subcommand;

use self::export::ExportArgs;
use self::image::LabImageArgs;
use self::plan::LabPlanArgs;
use self::run::LabRunArgs;
use self::undo::LabUndoArgs;

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// What this host can run, why not the rest, and what to do about it. Nothing is written.
    #[command(after_help = "Examples:\n  nearmetal lab plan\n  \
        nearmetal lab plan --format json\n  \
        nearmetal lab plan --root recorded-host")]
    Plan(LabPlanArgs),
    /// Measure in pairs of virtual machines, and beside them on the host itself.
    #[command(after_help = "Examples:\n  nearmetal lab run\n  \
        nearmetal lab run --env wire --kernel linux-image-6.1.0-56-cloud-amd64.deb\n  \
        nearmetal lab run --env vswitch,vhost --execution kvm --seconds 5 --out lab\n\n\
        Without KVM of the machine's own the guests are emulated: every figure of theirs says so, \
        and none is judged or compared.")]
    Run(LabRunArgs),
    /// What a guest is made of.
    #[command(after_help = "Example:\n  nearmetal lab image --list")]
    Image(LabImageArgs),
    /// The same environment for the user's own libvirt: files in a new folder.
    #[command(after_help = "Examples:\n  \
        nearmetal lab export libvirt vhost --out vhost-pair\n  \
        nearmetal lab export libvirt sriov --nic ens1f0 --out pair")]
    Export(ExportArgs),
    /// Put back the drivers and virtual functions of network devices, after a run that was killed.
    #[command(after_help = "Examples:\n  nearmetal lab undo\n  \
        nearmetal lab undo --keep-theirs pci.functions\n\n\
        Exit codes: 0 all is as before · 4 something could not be written · 5 somebody else has \
        changed it since")]
    Undo(LabUndoArgs),
}
