//! The documents that say what a setting should be, and why a finding matters.

use nm_model::finding::Citation;

/// A document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    title: &'static str,
    url: Option<&'static str>,
}

impl Source {
    const fn at(title: &'static str, url: &'static str) -> Source {
        Source { title, url: Some(url) }
    }

    const fn named(title: &'static str) -> Source {
        Source { title, url: None }
    }

    /// Name of the document.
    pub fn title(&self) -> &'static str {
        self.title
    }

    /// As findings carry it.
    pub fn citation(&self) -> Citation {
        Citation { title: self.title.to_string(), url: self.url.map(str::to_string) }
    }

    /// Whether this is [`JUDGEMENT`].
    pub fn is_judgement(&self) -> bool {
        *self == JUDGEMENT
    }
}

/// No figure was found.
pub const JUDGEMENT: Source = Source::named("engineering judgement; no published figure was found");
/// The built-in runs `deftech-*`.
pub const DEFTECH: Source = Source::named("published study deftech-2019");
/// Virtual network card, pass-through and kernel bypass on ESXi.
pub const VMWARE: Source = Source::named("published study vmware-2014");
/// Throughput of guests with and without acceleration.
pub const XENSERVER: Source = Source::named("published study xenserver-2009");
/// Throughput, latency and compute on XenServer.
pub const MONTEREY: Source = Source::named("published study monterey-2010");
/// Low-latency guide.
pub const RIGTORP: Source =
    Source::at("rigtorp.se, Low latency tuning guide", "https://rigtorp.se/low-latency-guide/");
/// Memory guide.
pub const RIGTORP_MEMORY: Source = Source::at(
    "rigtorp.se, Using huge pages and locking memory",
    "https://rigtorp.se/virtual-memory/",
);
/// TuneD's profiles.
pub const TUNED: Source = Source::at(
    "TuneD profiles",
    "https://github.com/redhat-performance/tuned/tree/master/profiles",
);
/// Best practices of Amazon's driver.
pub const ENA: Source = Source::at(
    "ENA Linux driver, best practices",
    "https://github.com/amzn/amzn-drivers/tree/master/kernel/linux/ena",
);
/// AWS's sample for trading.
pub const AWS: Source = Source::at(
    "AWS trading-latency-benchmark",
    "https://github.com/aws-samples/trading-latency-benchmark",
);
/// Linux kernel: power management of idle CPUs.
pub const K_CPUIDLE: Source = Source::at(
    "Linux kernel, CPU idle time management",
    "https://docs.kernel.org/admin-guide/pm/cpuidle.html",
);
/// Linux kernel: frequencies.
pub const K_CPUFREQ: Source = Source::at(
    "Linux kernel, CPU performance scaling",
    "https://docs.kernel.org/admin-guide/pm/cpufreq.html",
);
/// Linux kernel: command line.
pub const K_PARAMETERS: Source = Source::at(
    "Linux kernel, command-line parameters",
    "https://docs.kernel.org/admin-guide/kernel-parameters.html",
);
/// Linux kernel: hardware latency detector.
pub const K_HWLAT: Source = Source::at(
    "Linux kernel, hardware latency detector",
    "https://docs.kernel.org/trace/hwlat_detector.html",
);
/// Linux kernel: KVM's CPUID leaves.
pub const K_KVM_CPUID: Source =
    Source::at("Linux kernel, KVM CPUID bits", "https://docs.kernel.org/virt/kvm/x86/cpuid.html");
/// Linux kernel: KVM's MSRs, steal time.
pub const K_KVM_MSR: Source =
    Source::at("Linux kernel, KVM-specific MSRs", "https://docs.kernel.org/virt/kvm/x86/msr.html");
/// Linux kernel: halt polling of hosts.
pub const K_HALT_POLL: Source = Source::at(
    "Linux kernel, KVM halt polling",
    "https://docs.kernel.org/virt/kvm/halt-polling.html",
);
/// Linux kernel: halt polling of guests.
pub const K_GUEST_HALT_POLL: Source = Source::at(
    "Linux kernel, guest halt polling",
    "https://docs.kernel.org/virt/guest-halt-polling.html",
);
/// Linux kernel: threads of each CPU.
pub const K_PER_CPU: Source = Source::at(
    "Linux kernel, reducing OS jitter due to per-CPU kthreads",
    "https://docs.kernel.org/admin-guide/kernel-per-CPU-kthreads.html",
);
/// Linux kernel: settings of the virtual memory.
pub const K_VM: Source =
    Source::at("Linux kernel, /proc/sys/vm", "https://docs.kernel.org/admin-guide/sysctl/vm.html");
/// Linux kernel: transparent huge pages.
pub const K_THP: Source = Source::at(
    "Linux kernel, transparent hugepage support",
    "https://docs.kernel.org/admin-guide/mm/transhuge.html",
);
/// Linux kernel: settings of the network core.
pub const K_NET: Source = Source::at(
    "Linux kernel, /proc/sys/net",
    "https://docs.kernel.org/admin-guide/sysctl/net.html",
);
/// Linux kernel: wake-up times of Intel's idle states.
pub const K_INTEL_IDLE: Source = Source::at(
    "Linux kernel, drivers/idle/intel_idle.c",
    "https://github.com/torvalds/linux/blob/master/drivers/idle/intel_idle.c",
);
/// Intel's guides to its network devices.
pub const INTEL_NIC: Source = Source::named("Intel, guides to the 700 and 800 series");
/// Linux kernel: settings of IP.
pub const K_IP: Source =
    Source::at("Linux kernel, IP sysctl", "https://docs.kernel.org/networking/ip-sysctl.html");
/// Linux kernel: NAPI.
pub const K_NAPI: Source =
    Source::at("Linux kernel, NAPI", "https://docs.kernel.org/networking/napi.html");
/// Linux kernel: control groups.
pub const K_CGROUP: Source = Source::at(
    "Linux kernel, control group v2",
    "https://docs.kernel.org/admin-guide/cgroup-v2.html",
);
/// Linux kernel: bandwidth control.
pub const K_CFS: Source = Source::at(
    "Linux kernel, CFS bandwidth control",
    "https://docs.kernel.org/scheduler/sched-bwc.html",
);
/// Linux kernel: vulnerabilities.
pub const K_VULNERABILITIES: Source = Source::at(
    "Linux kernel, hardware vulnerabilities",
    "https://docs.kernel.org/admin-guide/hw-vuln/index.html",
);
/// OpenStack: CPUs.
pub const NOVA: Source = Source::at(
    "OpenStack Nova, CPU topologies",
    "https://docs.openstack.org/nova/latest/admin/cpu-topologies.html",
);
/// OpenStack: PCI devices.
pub const NOVA_PCI: Source = Source::at(
    "OpenStack Nova, PCI pass-through",
    "https://docs.openstack.org/nova/latest/admin/pci-passthrough.html",
);
/// libvirt's domain format.
pub const LIBVIRT: Source =
    Source::at("libvirt, domain XML format", "https://libvirt.org/formatdomain.html");
/// Solarflare's guide.
pub const SOLARFLARE: Source = Source::named("Solarflare server adapter user guide");
/// VMware's paper on latency-sensitive workloads.
pub const VSPHERE: Source =
    Source::named("VMware, Deploying extremely latency-sensitive applications in vSphere 5.5");
/// Seastar's tuner.
pub const PERFTUNE: Source = Source::at(
    "Seastar perftune.py",
    "https://github.com/scylladb/seastar/blob/master/scripts/perftune.py",
);
/// stalld.
pub const STALLD: Source = Source::at("stalld", "https://gitlab.com/rt-linux-tools/stalld");
/// Linux kernel: settings of the kernel itself.
pub const K_KERNEL: Source = Source::at(
    "Linux kernel, /proc/sys/kernel",
    "https://docs.kernel.org/admin-guide/sysctl/kernel.html",
);
/// Linux kernel: work queues.
pub const K_WORKQUEUE: Source =
    Source::at("Linux kernel, work queues", "https://docs.kernel.org/core-api/workqueue.html");
/// Linux kernel: settings of machine checks.
pub const K_MACHINE_CHECK: Source = Source::at(
    "Linux kernel, machine checks",
    "https://docs.kernel.org/arch/x86/x86_64/machinecheck.html",
);
/// Linux kernel: frequency of Intel's uncore.
pub const K_UNCORE: Source = Source::at(
    "Linux kernel, Intel uncore frequency scaling",
    "https://docs.kernel.org/admin-guide/pm/intel_uncore_frequency_scaling.html",
);
/// Linux kernel: shares of caches and memory bandwidth.
pub const K_RESCTRL: Source =
    Source::at("Linux kernel, resctrl", "https://docs.kernel.org/filesystems/resctrl.html");
/// Linux kernel: split and bus locks.
pub const K_BUS_LOCK: Source =
    Source::at("Linux kernel, bus lock detection", "https://docs.kernel.org/arch/x86/buslock.html");
/// Linux kernel: processors with cores of several types.
pub const K_CAPACITY: Source = Source::at(
    "Linux kernel, capacity aware scheduling",
    "https://docs.kernel.org/scheduler/sched-capacity.html",
);
/// AMD's guide to settings of the firmware for low latency.
pub const AMD_LATENCY: Source =
    Source::named("AMD 57037, Low latency response on EPYC 7002 series processors");
/// Lenovo's guide to settings of the firmware for Intel's processors.
pub const LENOVO_INTEL: Source = Source::at(
    "Lenovo Press LP1836, Tuning UEFI settings on Intel-based ThinkSystem servers",
    "https://lenovopress.lenovo.com/lp1836",
);
/// Lenovo's guide to settings of the firmware for AMD's processors.
pub const LENOVO_AMD: Source = Source::at(
    "Lenovo Press LP1977, Tuning UEFI settings on AMD EPYC ThinkSystem servers",
    "https://lenovopress.lenovo.com/lp1977",
);
/// The interface of management controllers.
pub const REDFISH: Source =
    Source::at("DMTF DSP0266, Redfish specification", "https://www.dmtf.org/standards/redfish");
