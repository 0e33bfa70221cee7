//! An RPM package.

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionType, FileOptions, PackageBuilder};

use super::product::{Processor, SUMMARY, VERSION};
use super::tarball::Entry;

/// The package of these files. It has no scripts, so it can be installed into an empty root.
pub(super) fn package(files: &[Entry], processor: Processor, time_s: u64) -> Result<Vec<u8>> {
    let time_s = u32::try_from(time_s).context("a time after 2106")?;
    let config = BuildConfig::v4().compression(CompressionType::Gzip).source_date(time_s);
    let mut builder =
        PackageBuilder::new("nearmetal", VERSION, "MIT OR Apache-2.0", processor.name, SUMMARY);
    builder.using_config(config).release("1").build_host("localhost");
    for Entry { path, mode, bytes } in files {
        let permissions = u16::try_from(*mode).context("permission bits")?;
        let options = FileOptions::new(format!("/{path}")).permissions(permissions);
        if let Some(bytes) = bytes {
            builder.with_file_contents(bytes.clone(), options)?;
        }
    }
    let mut packed = vec![];
    builder.build()?.write(&mut packed)?;
    Ok(packed)
}
