//! A container image from nothing, as an archive of an OCI image layout: what `podman load` and
//! `skopeo copy oci-archive:` read. Source: the OCI image specification, version 1.

use anyhow::Result;
use serde_json::{Value, json};

use super::product::{Processor, VERSION, sha256};
use super::tarball::{Entry, gzip, tar, with_folders};

/// The image with these files.
pub(super) fn image(files: &[Entry], processor: Processor, time_s: u64) -> Result<Vec<u8>> {
    let layer = tar(&with_folders(files), time_s)?;
    let packed = gzip(&layer)?;
    let config = json!({
        "architecture": processor.image,
        "os": "linux",
        "config": { "Entrypoint": ["/usr/bin/nearmetal"], "Env": ["PATH=/usr/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))] },
    });
    let config = serde_json::to_vec(&config)?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
    }))?;
    let mut first = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    first["platform"] = json!({ "architecture": processor.image, "os": "linux" });
    first["annotations"] =
        json!({ "org.opencontainers.image.ref.name": format!("nearmetal:{VERSION}") });
    let index = json!({ "schemaVersion": 2, "manifests": [first] });
    let mut all = vec![
        Entry::file("index.json", 0o644, serde_json::to_vec(&index)?),
        Entry::file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
    ];
    for blob in [config, manifest, packed] {
        all.push(Entry::file(format!("blobs/sha256/{}", sha256(&blob)), 0o644, blob));
    }
    tar(&with_folders(&all), time_s)
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    let digest = format!("sha256:{}", sha256(bytes));
    json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
}
