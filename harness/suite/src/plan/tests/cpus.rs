// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use tramplab_model::run::Configuration;

#[test]
fn a_configuration_sets_the_number_of_cpus() {
    let suite = suite(
        "tests:\n  - attach: { mechanisms: [fentry], functions: [1], rounds: 1, clock: exact }\n  \
         - trigger: { mechanisms: [fentry], throughput: false }\n",
    );
    let images = [image("a", None)];
    let configuration =
        Configuration { of: "a".to_owned(), cpus: Some(2), ..Configuration::default() };
    let guest =
        Guest { configuration: Some(&configuration), ..guests(&images, Accel::Tcg).remove(0) };
    let cells = crate::plan::cells(&suite, &[guest], false);
    let [attach, trigger] = &cells[..] else { panic!("{cells:?}") };
    assert_eq!((attach.cpus, trigger.cpus), (2, 2));
    assert!(attach.skip.as_ref().is_some_and(|why| why.contains("2 CPUs on one thread")));
    assert_eq!((&trigger.skip, trigger.clocks()), (&None, vec![Clock::Free]));
}
