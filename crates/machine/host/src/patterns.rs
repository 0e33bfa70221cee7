//! The files that a snapshot reads. Nothing else is opened.
//!
//! In a part of a path, `*` stands for any characters and `#` for a number.

use std::borrow::Cow;

/// Files that match a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Absolute path.
    pub path: Cow<'static, str>,
    /// What is read of it.
    pub what: What,
    /// Most bytes of one file.
    pub bytes_max: u64,
    /// Most files that match.
    pub matches_max: usize,
    /// Beginnings of the lines that are kept; all lines if empty.
    pub keep: &'static [&'static str],
}

/// What is read of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Its content.
    Text,
    /// Its content, and again after the interval.
    Counter,
    /// The target of a symbolic link.
    Symlink,
    /// Whether it exists.
    Presence,
}

/// Most bytes of a file without another limit.
const BYTES: u64 = 64 << 10;

/// Most matches of a pattern without another limit.
const MATCHES: usize = 8_192;

impl Pattern {
    fn new(path: &'static str, what: What) -> Pattern {
        let path = Cow::Borrowed(path);
        Pattern { path, what, bytes_max: BYTES, matches_max: MATCHES, keep: &[] }
    }

    /// A small file.
    pub fn text(path: &'static str) -> Pattern {
        Pattern::new(path, What::Text)
    }

    /// A small file by a path that is not known before.
    pub fn of_path(path: String, what: What) -> Pattern {
        Pattern { path: Cow::Owned(path), ..Pattern::new("", what) }
    }

    fn counter(path: &'static str) -> Pattern {
        Pattern::new(path, What::Counter)
    }

    fn bytes(self, bytes_max: u64) -> Pattern {
        Pattern { bytes_max, ..self }
    }

    fn at_most(self, matches_max: usize) -> Pattern {
        Pattern { matches_max, ..self }
    }

    fn keep(self, keep: &'static [&'static str]) -> Pattern {
        Pattern { keep, ..self }
    }

    /// The pattern with the process in place of `PID`.
    pub fn of_process(&self, pid: u32) -> Pattern {
        Pattern { path: self.path.replace("PID", &pid.to_string()).into(), ..self.clone() }
    }

    /// The lines of `text` that are kept. Lines may also end with a zero.
    pub fn kept(&self, text: &str) -> String {
        if self.keep.is_empty() {
            return text.to_string();
        }
        let lines = text.split(['\n', '\0']).map(str::trim);
        let is_kept = |line: &&str| self.keep.iter().any(|start| line.starts_with(start));
        lines.filter(is_kept).collect::<Vec<_>>().join("\n")
    }
}

fn present(path: &'static str) -> Pattern {
    Pattern::new(path, What::Presence)
}

/// Patterns of the files in one folder, whose names are separated by blanks.
fn in_folder(
    what: What,
    folder: &'static str,
    names: &'static str,
) -> impl Iterator<Item = Pattern> {
    names.split_whitespace().map(move |name| Pattern::of_path(format!("{folder}/{name}"), what))
}

/// All patterns of the machine, the most important ones first, in case a limit is reached.
pub fn all() -> Vec<Pattern> {
    let mut all = vec![];
    all.extend(system());
    all.extend(settings_files());
    all.extend(processor());
    all.extend(memory());
    all.extend(network());
    all.extend(devices());
    all.extend(kernel());
    all.extend(interrupts());
    all.extend(processes());
    all
}

fn system() -> Vec<Pattern> {
    let mut all = vec![
        Pattern::text("/proc/cpuinfo").bytes(4 << 20),
        Pattern::counter("/proc/stat").bytes(1 << 20),
        Pattern::counter("/proc/interrupts").bytes(4 << 20),
        Pattern::counter("/proc/net/softnet_stat").bytes(1 << 20),
        Pattern::counter("/proc/net/snmp"),
        Pattern::counter("/proc/schedstat").bytes(4 << 20),
        Pattern::text("/proc/1/environ").keep(&["container="]),
        Pattern::text("/proc/self/environ").keep(&["KUBERNETES_SERVICE_PORT="]),
        Pattern::text("/proc/self/status").keep(&[
            "Name:",
            "CapEff:",
            "CapBnd:",
            "Seccomp:",
            "NoNewPrivs:",
            "Cpus_allowed_list:",
            "Mems_allowed_list:",
        ]),
        Pattern::text("/proc/sysinfo").keep(&["LPAR Number:", "VM00 Control Program:"]),
        present("/.dockerenv"),
        present("/run/.containerenv"),
        present("/var/run/secrets/kubernetes.io/serviceaccount"),
        Pattern::text("/run/systemd/container"),
    ];
    all.extend(in_folder(
        What::Text,
        "/proc",
        "cmdline loadavg meminfo swaps uptime self/limits self/cgroup \
         sys/kernel/hostname sys/kernel/osrelease sys/kernel/arch \
         sys/kernel/random/boot_id sys/kernel/watchdog_cpumask sys/kernel/tainted \
         sys/kernel/watchdog_thresh sys/kernel/watchdog sys/kernel/soft_watchdog \
         sys/kernel/split_lock_mitigate sys/net/netfilter/nf_conntrack_count \
         sys/net/ipv4/tcp_no_metrics_save sys/vm/dirty_bytes \
         sys/vm/dirty_background_bytes",
    ));
    all.extend(in_folder(What::Text, "/etc", "os-release default/irqbalance sysconfig/irqbalance"));
    all.push(Pattern::text("/usr/lib/os-release"));
    all.push(Pattern::text("/etc/audit/audit.rules").keep(&["-a", "-w", "-D"]));
    all.extend(in_folder(
        What::Text,
        "/sys/class/dmi/id",
        "sys_vendor product_name product_version product_uuid bios_vendor bios_version \
         bios_date board_name chassis_asset_tag",
    ));
    all.extend(in_folder(What::Text, "/sys/hypervisor", "type uuid"));
    all.extend(in_folder(
        What::Text,
        "/sys/firmware/devicetree/base",
        "model compatible hypervisor/compatible",
    ));
    all
}

fn settings_files() -> Vec<Pattern> {
    crate::settings::paths().map(|path| Pattern::of_path(path, What::Text)).collect()
}

fn processor() -> Vec<Pattern> {
    let mut all = vec![];
    all.extend(in_folder(
        What::Text,
        "/sys/devices/system/cpu",
        "online possible isolated nohz_full smt/active smt/control \
         cpuidle/current_driver cpuidle/current_governor cpuidle/current_governor_ro \
         intel_pstate/status amd_pstate/status vulnerabilities/*",
    ));
    all.extend(in_folder(
        What::Text,
        "/sys/devices",
        "cpu_core/cpus cpu_atom/cpus cpu_lowpower/cpus \
         system/machinecheck/machinecheck#/check_interval \
         system/cpu/intel_uncore_frequency/*/min_freq_khz \
         system/cpu/intel_uncore_frequency/*/max_freq_khz \
         virtual/workqueue/writeback/cpumask",
    ));
    all.extend(in_folder(What::Text, "/sys/fs/resctrl", "schemata */schemata */cpus_list"));
    all.push(present("/sys/fs/resctrl"));
    all.extend(in_folder(
        What::Text,
        "/sys/devices/system/cpu/cpu#",
        "topology/thread_siblings_list topology/physical_package_id \
         cache/index2/shared_cpu_list cache/index3/shared_cpu_list cpu_capacity \
         cpufreq/scaling_governor cpufreq/scaling_driver \
         cpufreq/scaling_min_freq cpufreq/scaling_max_freq cpufreq/cpuinfo_max_freq \
         cpufreq/base_frequency cpufreq/energy_performance_preference \
         power/energy_perf_bias power/pm_qos_resume_latency_us",
    ));
    all.extend(in_folder(
        What::Text,
        "/sys/devices/system/cpu/cpu#/cpuidle/state#",
        "name latency disable",
    ));
    all.extend(in_folder(
        What::Counter,
        "/sys/devices/system/cpu/cpu#",
        "cpuidle/state#/usage thermal_throttle/core_throttle_count \
         thermal_throttle/package_throttle_count",
    ));
    all
}

fn memory() -> Vec<Pattern> {
    let mut all = vec![];
    all.extend(in_folder(
        What::Text,
        "/sys/devices/system/node",
        "online node#/cpulist node#/distance node#/hugepages/hugepages-*/nr_hugepages \
         node#/hugepages/hugepages-*/free_hugepages",
    ));
    all.extend(in_folder(What::Counter, "/sys/devices/system/edac/mc/mc#", "ce_count ue_count"));
    all.push(Pattern::text("/sys/module/page_reporting/parameters/page_reporting_order"));
    all.push(present("/sys/bus"));
    all.push(present("/sys/bus/virtio/drivers/virtio_balloon/virtio#"));
    all
}

fn network() -> Vec<Pattern> {
    /// More links are virtual ones of containers.
    const LINKS: usize = 1_024;
    let mut all = vec![];
    all.extend(
        in_folder(
            What::Text,
            "/sys/class/net/*",
            "address mtu type speed duplex operstate napi_defer_hard_irqs gro_flush_timeout \
         threaded device/numa_node device/local_cpulist device/current_link_speed \
         device/max_link_speed device/current_link_width device/max_link_width \
         device/sriov_numvfs device/sriov_totalvfs device/vendor device/device \
         device/link/l0s_aspm device/link/l1_aspm device/link/l1_1_aspm \
         device/link/l1_2_aspm",
        )
        .map(|pattern| pattern.at_most(LINKS)),
    );
    all.extend(in_folder(What::Text, "/sys/class/net/*/queues", "rx-#/rps_cpus tx-#/xps_cpus"));
    all.extend(
        in_folder(
            What::Counter,
            "/sys/class/net/*/statistics",
            "rx_dropped tx_dropped rx_missed_errors rx_fifo_errors rx_errors tx_errors",
        )
        .map(|pattern| pattern.at_most(LINKS)),
    );
    all.extend(
        in_folder(
            What::Symlink,
            "/sys/class/net/*",
            "master device device/driver device/physfn device/iommu_group",
        )
        .map(|pattern| pattern.at_most(LINKS)),
    );
    all.extend(in_folder(
        What::Presence,
        "/sys/class/net/*",
        "bridge bonding tun_flags device/msi_irqs/# device/infiniband/* upper_* lower_*",
    ));
    all
}

fn devices() -> Vec<Pattern> {
    let mut all = vec![];
    all.extend(in_folder(What::Text, "/sys/bus/pci/devices/*", "numa_node class"));
    all.extend(in_folder(What::Symlink, "/sys/bus/pci/devices/*", "driver physfn"));
    all.extend(in_folder(What::Symlink, "/sys/class/infiniband/*", "device"));
    all.extend(in_folder(
        What::Text,
        "/sys",
        "kernel/iommu_groups/#/type class/ptp/ptp#/clock_name",
    ));
    all.extend(in_folder(
        What::Presence,
        "/sys",
        "class/iommu/* firmware/acpi/tables/DMAR firmware/acpi/tables/IVRS \
         kernel/iommu_groups/# class/infiniband/* module/nf_conntrack module/onload \
         module/sfc_resource module/kvm",
    ));
    all.extend(in_folder(What::Presence, "/dev", "onload vfio/vfio vfio/# ptp# ptp_kvm kvm"));
    all
}

fn kernel() -> Vec<Pattern> {
    let mut all = vec![
        Pattern::text("/boot/config-*").bytes(1 << 20).at_most(16).keep(CONFIG),
        Pattern::text("/lib/modules/*/config").bytes(1 << 20).at_most(16).keep(CONFIG),
        Pattern::text("/sys/kernel/debug/sched/fair_server/cpu#/runtime"),
        Pattern::text("/run/libvirt/qemu/*.xml").bytes(1 << 20).at_most(256).keep(DOMAIN),
    ];
    all.extend(in_folder(
        What::Text,
        "/sys",
        "kernel/tracing/current_tracer kernel/tracing/kprobe_events \
         kernel/tracing/tracing_on kernel/debug/tracing/current_tracer \
         kernel/debug/tracing/kprobe_events kernel/debug/sched/preempt \
         kernel/debug/kprobes/list",
    ));
    all.extend(in_folder(
        What::Text,
        "/sys/module",
        "kvm/parameters/kvmclock_periodic_sync kvm/parameters/nx_huge_pages \
         kvm/parameters/halt_poll_ns kvm_intel/parameters/ple_gap \
         kvm_intel/parameters/nested kvm_amd/parameters/nested \
         kvm_intel/parameters/preemption_timer intel_idle/parameters/max_cstate \
         processor/parameters/max_cstate rcutree/parameters/rcu_nocb_gp_stride",
    ));
    all
}

fn interrupts() -> Vec<Pattern> {
    let mut all = vec![Pattern::text("/proc/irq/default_smp_affinity")];
    all.extend(in_folder(What::Text, "/proc/irq/#", "effective_affinity_list smp_affinity_list"));
    all
}

fn processes() -> Vec<Pattern> {
    vec![
        Pattern::text("/proc/#/comm").at_most(32_768),
        Pattern::text("/proc/#/status").at_most(32_768).keep(&[
            "Name:",
            "PPid:",
            "Cpus_allowed_list:",
        ]),
    ]
}

/// Lines of a kernel's configuration that are kept.
const CONFIG: &[&str] = &[
    "CONFIG_HZ=",
    "CONFIG_NO_HZ_FULL=",
    "CONFIG_RCU_NOCB_CPU=",
    "CONFIG_PREEMPT=",
    "CONFIG_PREEMPT_RT=",
    "CONFIG_PREEMPT_VOLUNTARY=",
    "CONFIG_PREEMPT_NONE=",
    "CONFIG_PREEMPT_DYNAMIC=",
    "CONFIG_PREEMPT_LAZY=",
    "CONFIG_PROVE_LOCKING=",
    "CONFIG_LOCKDEP=",
    "CONFIG_KASAN=",
    "CONFIG_KCSAN=",
    "CONFIG_UBSAN=",
    "CONFIG_DEBUG_PREEMPT=",
    "CONFIG_DEBUG_PAGEALLOC_ENABLE_DEFAULT=",
    "CONFIG_SLUB_DEBUG_ON=",
    "CONFIG_INIT_ON_ALLOC_DEFAULT_ON=",
    "CONFIG_HWLAT_TRACER=",
    "CONFIG_OSNOISE_TRACER=",
    "CONFIG_IRQ_TIME_ACCOUNTING=",
    "CONFIG_PARAVIRT_TIME_ACCOUNTING=",
];

/// Lines of libvirt's description of a running machine that are kept.
const DOMAIN: &[&str] = &[
    "<domstatus",
    "<name>",
    "<uuid>",
    "<vcpu ",
    "<vcpu>",
    "<memoryBacking",
    "<hugepages",
    "<locked",
    "<vcpupin",
    "<emulatorpin",
    "<iothreadpin",
    "<hint-dedicated",
    "<memballoon",
    "<mac address",
    "<cpu mode",
    "<timer name",
];

/// The priority of a thread of the kernel, by its process id.
pub fn kernel_thread(pid: u32) -> Pattern {
    Pattern::of_path(format!("/proc/{pid}/stat"), What::Text)
}

/// Files of the workload's process.
pub fn process() -> Vec<Pattern> {
    let mut all = vec![
        Pattern::text("/proc/PID/numa_maps").bytes(4 << 20),
        Pattern::counter("/proc/PID/stat"),
        Pattern::text("/proc/PID/limits"),
        Pattern::text("/proc/PID/comm"),
        Pattern::text("/proc/PID/status").keep(&[
            "Name:",
            "PPid:",
            "Cpus_allowed_list:",
            "VmLck:",
            "VmRSS:",
            "VmSwap:",
            "Threads:",
        ]),
    ];
    all.extend(threads());
    all
}

/// Files of a process that runs a virtual machine.
pub fn virtual_machine() -> Vec<Pattern> {
    let mut all = threads();
    all.push(Pattern::text("/proc/PID/status").keep(&[
        "Name:",
        "PPid:",
        "Cpus_allowed_list:",
        "VmLck:",
        "VmRSS:",
        "VmSwap:",
        "Threads:",
    ]));
    all
}

fn threads() -> Vec<Pattern> {
    const THREADS: usize = 4_096;
    vec![
        Pattern::text("/proc/PID/task/#/comm").at_most(THREADS),
        Pattern::text("/proc/PID/task/#/stat").at_most(THREADS),
        Pattern::text("/proc/PID/task/#/status").at_most(THREADS).keep(&[
            "Name:",
            "Cpus_allowed_list:",
            "voluntary_ctxt_switches:",
            "nonvoluntary_ctxt_switches:",
        ]),
        Pattern::counter("/proc/PID/task/#/schedstat").at_most(THREADS),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_lines_are_those_with_a_known_beginning() {
        let pattern = Pattern::text("/proc/1/environ").keep(&["container="]);
        assert_eq!(pattern.kept("SECRET=x\0container=lxc\0PATH=/bin"), "container=lxc");
        assert_eq!(Pattern::text("/a").kept("x\ny"), "x\ny");
    }

    #[test]
    fn paths_are_absolute_limited_and_name_no_device() {
        for pattern in all().into_iter().chain(process()).chain(virtual_machine()) {
            assert!(pattern.path.starts_with('/'), "{pattern:?}");
            assert!((1..=4 << 20).contains(&pattern.bytes_max), "{pattern:?}");
            let is_read = matches!(pattern.what, What::Text | What::Counter);
            assert!(!is_read || !pattern.path.starts_with("/dev/"), "{pattern:?}");
        }
        assert_eq!(process()[0].of_process(17).path, "/proc/17/numa_maps");
    }
}
