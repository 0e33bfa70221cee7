//! Options of `lab`.

pub mod image;
pub mod run;

use clap::Subcommand;

use self::image::LabImageArgs;
use self::run::LabRunArgs;

#[derive(Debug, Subcommand)]
pub enum LabCommand {
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
}
