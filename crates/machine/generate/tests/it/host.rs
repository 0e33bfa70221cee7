//! Recorded trees of hosts, made in temporary folders.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nm_generate::{PageSize, Request};
use tempfile::TempDir;

/// A device of a recorded host.
pub struct Device {
    pub address: &'static str,
    pub class: &'static str,
    /// `vendor:product`
    pub id: &'static str,
    pub node: i32,
    pub link: Option<&'static str>,
    pub vfs_max: Option<u32>,
    /// `sriov_numvfs`
    pub vfs_enabled: u32,
    pub parent: Option<&'static str>,
    pub group: u32,
}

/// A host of `nodes` nodes with `cores` cores each and `threads` threads each. Threads of a core
/// are numbered as on most servers: all first threads, then all second ones.
pub struct Host {
    pub nodes: u32,
    pub cores: u32,
    pub threads: u32,
    pub flags: &'static str,
    /// Free and all 1 GiB pages of each node; also those of 2 MiB.
    pub pages: (u64, u64),
    pub devices: Vec<Device>,
    pub iommu: bool,
}

/// Two sockets of eight cores with two threads, a network card of two ports on the second node, a
/// plain one and one with virtual functions on the first.
pub fn server() -> Host {
    let ethernet = "0x020000";
    let device = |address, id, node, link, group| Device {
        address,
        class: ethernet,
        id,
        node,
        link,
        vfs_max: None,
        vfs_enabled: 0,
        parent: None,
        group,
    };
    let parent = |address, id, node, link, group| Device {
        vfs_max: Some(8),
        ..device(address, id, node, Some(link), group)
    };
    Host {
        nodes: 2,
        cores: 8,
        threads: 2,
        flags: "fpu vmx constant_tsc nonstop_tsc pdpe1gb",
        pages: (16, 32),
        devices: vec![
            Device {
                class: "0x060400",
                link: None,
                ..device("0000:3a:00.0", "8086:2030", 0, None, 1)
            },
            parent("0000:3b:00.0", "8086:1592", 0, "ens1f0", 2),
            Device {
                parent: Some("0000:3b:00.0"),
                ..device("0000:3b:01.0", "8086:1889", 0, Some("ens1f0v0"), 3)
            },
            device("0000:5e:00.0", "14e4:165f", 0, Some("eno1"), 1),
            parent("0000:af:00.0", "1924:0b03", 1, "ens4f0", 4),
            parent("0000:af:00.1", "1924:0b03", 1, "ens4f1", 5),
        ],
        iommu: true,
    }
}

/// A guest that fits on the second node of [`server`].
pub fn request() -> Request {
    Request {
        name: "latency".into(),
        vcpus: 4,
        memory_bytes: 8 << 30,
        nic: "ens4f0".into(),
        page_size: PageSize::Gib1,
        dedicated_cores: None,
        realtime: false,
        disk: None,
    }
}

impl Host {
    /// Writes the files that a kernel on this host would show.
    pub fn record(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let all = self.nodes * self.cores;
        write(root, "proc/cpuinfo", &format!("processor : 0\nflags\t\t: {}\n", self.flags));
        let cpus = "sys/devices/system/cpu";
        write(root, &format!("{cpus}/online"), &format!("0-{}\n", all * self.threads - 1));
        for cpu in 0..all * self.threads {
            let threads: Vec<String> =
                (0..self.threads).map(|thread| (cpu % all + thread * all).to_string()).collect();
            let file = format!("{cpus}/cpu{cpu}/topology/thread_siblings_list");
            write(root, &file, &threads.join(","));
        }
        for node in 0..self.nodes {
            let first = node * self.cores;
            let of_thread = |thread: u32| {
                let first = first + thread * all;
                format!("{}-{}", first, first + self.cores - 1)
            };
            let list: Vec<String> = (0..self.threads).map(of_thread).collect();
            let folder = format!("sys/devices/system/node/node{node}");
            write(root, &format!("{folder}/cpulist"), &list.join(","));
            for size in ["1048576", "2048"] {
                let pages = format!("{folder}/hugepages/hugepages-{size}kB");
                write(root, &format!("{pages}/free_hugepages"), &self.pages.0.to_string());
                write(root, &format!("{pages}/nr_hugepages"), &self.pages.1.to_string());
            }
        }
        for device in &self.devices {
            self.record_device(root, device);
        }
        folder
    }

    fn record_device(&self, root: &Path, device: &Device) {
        let folder = format!("sys/bus/pci/devices/{}", device.address);
        let (vendor, product) = device.id.split_once(':').unwrap();
        write(root, &format!("{folder}/class"), device.class);
        write(root, &format!("{folder}/vendor"), &format!("0x{vendor}"));
        write(root, &format!("{folder}/device"), &format!("0x{product}"));
        write(root, &format!("{folder}/numa_node"), &device.node.to_string());
        if let Some(link) = device.link {
            write(root, &format!("{folder}/net/{link}/operstate"), "up");
        }
        if let Some(max) = device.vfs_max {
            write(root, &format!("{folder}/sriov_totalvfs"), &max.to_string());
            write(root, &format!("{folder}/sriov_numvfs"), &device.vfs_enabled.to_string());
        }
        if let Some(parent) = device.parent {
            symlink(format!("../{parent}"), root.join(&folder).join("physfn")).unwrap();
        }
        if self.iommu {
            let group = format!("sys/kernel/iommu_groups/{}/devices", device.group);
            write(root, &format!("{group}/{}", device.address), "");
        }
    }
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
