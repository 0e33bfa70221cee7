//! Network links of this process's namespace.

use nm_model::facts::LinkFacts;
use nm_sys::ethtool::Links;
use nm_sys::hostfiles::HostFiles;

/// Reads all links. They are queried by ioctl, because `/sys/class/net` may show another namespace;
/// only the NUMA node comes from sysfs, by the device's bus address.
pub fn read(files: &HostFiles) -> Vec<LinkFacts> {
    let Ok(links) = Links::new() else { return vec![] };
    links.names().into_iter().map(|name| link(&links, files, name)).collect()
}

fn link(links: &Links, files: &HostFiles, name: String) -> LinkFacts {
    let driver = links.driver(&name).unwrap_or_default();
    let known = |text: String| {
        let unknown = matches!(text.as_str(), "" | "N/A" | "n/a");
        (!unknown).then_some(text)
    };
    let bus = known(driver.bus);
    LinkFacts {
        driver: known(driver.name),
        driver_version: known(driver.version),
        firmware: known(driver.firmware),
        mtu: links.mtu(&name),
        speed_mbps: links.speed_mbps(&name),
        numa_node: bus
            .as_ref()
            .and_then(|bus| files.value(&format!("/sys/bus/pci/devices/{bus}/numa_node"))),
        bus,
        up: links.is_up(&name),
        coalescing: links.coalescing(&name).map(|c| {
            let on = |on| if on { "on" } else { "off" };
            format!(
                "rx-usecs={} rx-frames={} tx-usecs={} tx-frames={} adaptive-rx={} adaptive-tx={}",
                c.rx_usecs,
                c.rx_frames,
                c.tx_usecs,
                c.tx_frames,
                on(c.adaptive_rx),
                on(c.adaptive_tx)
            )
        }),
        rings: links.rings(&name).map(|rings| format!("rx={} tx={}", rings.rx, rings.tx)),
        queues: links.queues(&name),
        offloads: links.offloads(&name),
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_links() {
        let links = read(&HostFiles::default());
        let lo = links.iter().find(|link| link.name == "lo").unwrap();
        assert!(lo.up);
        assert!(lo.mtu.is_some());
        assert_eq!(lo.numa_node, None);
    }
}
