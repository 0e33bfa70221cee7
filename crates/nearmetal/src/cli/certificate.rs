//! Options of `certify` and `verify-certificate`.

use std::path::PathBuf;

use clap::Args;

use super::format::FormatArgs;
use super::number::number;
use super::percent::percent;
use super::shared::RUN_DEVIATION;

#[derive(Debug, Args)]
pub struct CertifyArgs {
    /// Result folder or result file.
    #[arg(required_unless_present = "new_key")]
    pub result: Option<String>,
    /// Secret key of the signer, a file of `--new-key` or of `minisign -G -W`.
    #[arg(long, value_name = "FILE", required_unless_present = "new_key")]
    pub key: Option<PathBuf>,
    /// Certificate to write; its signature gets the same name with `.minisig`.
    #[arg(long, value_name = "FILE", default_value = "certificate.json")]
    pub out: PathBuf,
    /// Days from the start of the run for which the certificate is valid.
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = number(1_u32..=3650))]
    pub valid_days: u32,
    /// Ratio that counts as equal, such as `5%`.
    #[arg(long, default_value = "30%", value_parser = percent)]
    pub margin: f64,
    /// Only make a pair of keys: the secret one in FILE, for its owner alone, and FILE.pub.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["result", "key", "out", "valid_days", "margin"]
    )]
    pub new_key: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct VerifyCertificateArgs {
    /// Certificate; its signature has the same name with `.minisig`.
    pub certificate: PathBuf,
    /// Public key of the signer: a file, or its line that begins with `RW`.
    #[arg(long, value_name = "FILE|KEY")]
    pub public_key: Option<String>,
    /// Result of a new run by the same plan, whose figures are tested against those certified.
    #[arg(long, value_name = "RESULT")]
    pub against: Option<String>,
    /// Ratio that counts as equal, such as `5%`.
    #[arg(long, value_parser = percent, requires = "against")]
    pub margin: Option<f64>,
    #[arg(
        long,
        value_parser = percent,
        value_name = "PERCENT",
        requires = "against",
        help = RUN_DEVIATION
    )]
    pub run_deviation: Option<f64>,
    /// Result that the certificate should be of.
    #[arg(long, value_name = "RESULT")]
    pub result: Option<String>,
    #[command(flatten)]
    pub format: FormatArgs,
}
