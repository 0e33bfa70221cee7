//! What a pair of guests needs of a host, decided without a call: `lab plan`, `lab run` and plans
//! ask the same functions.

use nm_model::GuestExecution;

use crate::image::PASS_THROUGH_MODULES;
use crate::nic::Nic;

/// Why no device can be passed to guests that a translator or an interpreter executes.
pub const NEEDS_KVM: &str =
    "only guests that KVM executes can have a device passed through, and there is none";

/// Whether a device can be passed to guests that are executed so.
pub fn can_pass_through(execution: GuestExecution) -> bool {
    matches!(execution, GuestExecution::RealKvm | GuestExecution::NestedKvm)
}

/// The driver that a guest needs for a virtual function of a device that `driver` has.
pub fn function_driver(driver: &str) -> &str {
    match driver {
        "igb" => "igbvf",
        "ixgbe" => "ixgbevf",
        "i40e" | "ice" => "iavf",
        "mlx4_core" => "mlx4_en",
        other => other,
    }
}

/// The driver that a guest needs for `nic`: that of its virtual functions, or its own. Absent if
/// the host does not show which one it has.
pub fn guest_driver(nic: &Nic, is_function: bool) -> Option<&str> {
    let driver = nic.driver.as_deref()?;
    Some(if is_function { function_driver(driver) } else { driver })
}

/// Why guests cannot drive a device, if they cannot: `kernel_has` says whether their kernel has a
/// module; absent if that is not known.
pub fn driver_shortage(
    driver: &str,
    release: &str,
    kernel_has: impl Fn(&str) -> Option<bool>,
) -> Option<String> {
    if !PASS_THROUGH_MODULES.contains(&driver) {
        return Some(format!("the guests' image has no place for the driver {driver}"));
    }
    (kernel_has(driver) == Some(false))
        .then(|| format!("the guests' kernel {release} has no driver {driver}"))
}

/// Whether two devices may be the ends of one cable, as far as the host shows: ports of the same
/// driver and the same speed.
pub fn are_alike(one: &Nic, other: &Nic) -> bool {
    one.driver == other.driver && one.speed_mbps == other.speed_mbps
}

/// Whether two devices are ports of one card.
pub fn are_of_one_card(one: &Nic, other: &Nic) -> bool {
    let slot = |nic: &Nic| nic.address.to_string().rsplit_once('.').map(|(at, _)| at.to_string());
    slot(one) == slot(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_need_the_driver_of_their_device() {
        assert_eq!(function_driver("ice"), "iavf");
        assert_eq!(function_driver("mlx5_core"), "mlx5_core");
        let has = |name: &str| Some(name == "igbvf");
        assert_eq!(driver_shortage("igbvf", "6.1", has), None);
        let why = driver_shortage("iavf", "6.1", has).unwrap();
        assert_eq!(why, "the guests' kernel 6.1 has no driver iavf");
        assert_eq!(driver_shortage("iavf", "6.1", |_| None), None, "unknown is no refusal");
        assert!(driver_shortage("qede", "6.1", |_| Some(true)).unwrap().contains("no place"));
        assert!(can_pass_through(GuestExecution::NestedKvm));
        assert!(!can_pass_through(GuestExecution::Tcg));
        assert!(!can_pass_through(GuestExecution::InterpretedKvm));
    }
}
