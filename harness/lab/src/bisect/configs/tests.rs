// SPDX-License-Identifier: MIT OR Apache-2.0

use super::{
    differences::Differences,
    ends::{Unit, differing, overlay, units},
    *,
};
use crate::bisect::{Mark, Next, space::Space};
use std::cell::RefCell;

fn of(lines: &[(&str, &str)]) -> Values {
    lines.iter().map(|(option, value)| ((*option).to_owned(), (*value).to_owned())).collect()
}

/// 300 options, of which RCU_CHECK matters. It depends on OPTION_7; FOLLOWER has no prompt.
fn make(values: &Values) -> Values {
    let mut made = values.clone();
    if value(values, "OPTION_7") != "y" {
        made.insert("RCU_CHECK".to_owned(), "n".to_owned());
    }
    made.insert("FOLLOWER".to_owned(), value(&made, "RCU_CHECK").to_owned());
    made
}

fn all(value: &str) -> Values {
    let options = (0..299).map(|number| (format!("OPTION_{number}"), value.to_owned()));
    options.chain([("RCU_CHECK".to_owned(), value.to_owned())]).collect()
}

#[test]
fn finds_one_option_of_three_hundred_with_its_dependency() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::new(folder.path()).unwrap();
    let (good, bad) = (make(&all("n")), make(&all("y")));
    let settable: Vec<Unit> = all("n").into_keys().map(|option| Unit::from([option])).collect();
    let made = RefCell::new(0);
    let configure = |values: &Values| {
        *made.borrow_mut() += 1;
        Ok(make(values))
    };
    let differences = || Differences {
        names: ["good.config".to_owned(), "bad.config".to_owned()],
        ids: ["a".to_owned(), "b".to_owned()],
        good: good.clone(),
        bad: bad.clone(),
        units: settable.clone(),
        files: &files,
        sets: files.sets().unwrap(),
        configure: &configure,
    };
    let mut verdicts: Vec<(String, Mark)> = Vec::new();
    let (id, mut space) = loop {
        // Each step continues as after an interruption.
        let mut space = differences();
        match space.next("a", "b", &verdicts).unwrap() {
            Next::Test { commit, .. } => {
                let config = files.load(&commit).unwrap();
                let is_bad = value(&config, "FOLLOWER") == "y";
                verdicts.push((commit, if is_bad { Mark::Bad } else { Mark::Good }));
            }
            Next::Found(id) => break (id, space),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(space.commit(&id).unwrap().subject, "CONFIG_OPTION_7=y, CONFIG_RCU_CHECK=y");
    assert!(verdicts.len() <= 22, "{}", verdicts.len());
    // The option alone is dropped by make: that set is the good end, and no kernel is built.
    let rcu = settable.iter().position(|unit| unit.contains("RCU_CHECK")).unwrap();
    assert_eq!(space.sets.get(&Set::from([rcu])).map(String::as_str), Some("a"));
    assert_eq!(*made.borrow(), space.sets.len());
    let headline = space.headline("a metric", ["a", "b"], &verdicts).unwrap().unwrap();
    assert!(headline.contains("with that come CONFIG_FOLLOWER=y"), "{headline}");
    let with = values(&fs::read_to_string(folder.path().join("with.config")).unwrap()).unwrap();
    assert_eq!(differing(&good, &with).count(), 3);
}

#[test]
fn divides_choices_never_and_leaves_options_without_prompt_to_make() {
    let tree = tempfile::tempdir().unwrap();
    fs::write(
        tree.path().join("Kconfig"),
        "config SHOWN\n\tbool \"shown\"\nconfig HIDDEN\n\tbool\n\tdefault SHOWN\nchoice\n\
         \tprompt \"one\"\nconfig LEFT\n\tbool \"left\"\nconfig RIGHT\n\tbool \"right\"\n\
         endchoice\n",
    )
    .unwrap();
    let good = of(&[("SHOWN", "n"), ("LEFT", "y"), ("RIGHT", "n"), ("SAME", "y")]);
    let bad = of(&[("SHOWN", "y"), ("HIDDEN", "y"), ("RIGHT", "y"), ("SAME", "y")]);
    let options = differing(&good, &bad).cloned().collect();
    let asked = kconfig::asked(&options, tree.path(), Arch::X86_64).unwrap();
    let units = units(&good, &bad, &asked);
    let unit = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Unit>();
    assert_eq!(units, [unit(&["LEFT", "RIGHT"]), unit(&["SHOWN"])]);
    let overlaid = overlay(&good, &bad, &units, &Set::from([0]));
    assert_eq!(overlaid, of(&[("SHOWN", "n"), ("LEFT", "n"), ("RIGHT", "y"), ("SAME", "y")]));
}

#[test]
fn puts_what_guests_need_over_both_files_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let good = write("good.config", "CONFIG_NR_CPUS=64\nCONFIG_FOO=y\n");
    let bad = write("bad.config", "# CONFIG_BPF_SYSCALL is not set\n");
    let range = Configs { kernel: "k".to_owned(), good: good.clone(), bad };
    let sides = Sides::read(&range, Arch::X86_64).unwrap();
    assert!(!sides.is_whole);
    let told = sides.overridden();
    let [first, second] = &told[..] else { panic!("{told:?}") };
    assert!(first.contains("CONFIG_NR_CPUS=8 replaces CONFIG_NR_CPUS=64"), "{first}");
    assert!(first.contains("good.config:1"), "{first}");
    assert!(second.contains("CONFIG_BPF_SYSCALL=y replaces CONFIG_BPF_SYSCALL=n"), "{second}");
    let same = Configs { bad: good, ..range };
    assert!(matches!(Sides::read(&same, Arch::X86_64), Err(Error::Usage(_))));
}

#[test]
fn reads_only_regular_files_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::new(folder.path()).unwrap();
    let configs = folder.path().join("configs");
    let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    pipe(&files.config("a"));
    pipe(&configs.join("sets.json"));
    std::os::unix::fs::symlink("/dev/zero", files.config("b")).unwrap();
    assert_eq!(["a", "b"].map(|id| files.load(id)), [None, None]);
    assert_eq!(files.sets().unwrap(), BTreeMap::new());
    fs::remove_file(configs.join("sets.json")).unwrap();
    let set = |name: &str| Set::from_iter([name.len()]);
    let own = BTreeMap::from([(set("o"), "0af9".to_owned())]);
    let mut saved = own.clone();
    saved.insert(set("xx"), "../../x".to_owned());
    files.save_sets(&saved).unwrap();
    assert_eq!(files.sets().unwrap(), own);
}
