//! How a body becomes tests.

/// Makes the three tests of each body, such as `MODULE::kernel::NAME`.
macro_rules! behaviours {
    ($($name:ident),* $(,)?) => {
        pub(crate) const BODIES: &[$crate::harness::Body] =
            &[$((concat!(module_path!(), "::", stringify!($name)), $name)),*];

        mod kernel {
            $(
                #[test]
                fn $name() {
                    $crate::harness::check($crate::harness::Side::Kernel,
                        super::BODIES, stringify!($name));
                }
            )*
        }

        mod accelerated {
            $(
                #[test]
                fn $name() {
                    $crate::harness::check($crate::harness::Side::Accelerated,
                        super::BODIES, stringify!($name));
                }
            )*
        }

        mod accelerated_on_one_cpu {
            $(
                #[test]
                fn $name() {
                    $crate::harness::check($crate::harness::Side::AcceleratedOnOneCpu,
                        super::BODIES, stringify!($name));
                }
            )*
        }
    };
}

/// Makes the accelerated tests only, of bodies that have no meaning on the kernel.
macro_rules! accelerated_only {
    ($($name:ident),* $(,)?) => {
        pub(crate) const BODIES: &[$crate::harness::Body] =
            &[$((concat!(module_path!(), "::", stringify!($name)), $name)),*];

        mod accelerated {
            $(
                #[test]
                fn $name() {
                    $crate::harness::check($crate::harness::Side::Accelerated,
                        super::BODIES, stringify!($name));
                }
            )*
        }

        mod accelerated_on_one_cpu {
            $(
                #[test]
                fn $name() {
                    $crate::harness::check($crate::harness::Side::AcceleratedOnOneCpu,
                        super::BODIES, stringify!($name));
                }
            )*
        }
    };
}
