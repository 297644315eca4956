// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask source`: gives a kernel's sources as a git repository.

use super::{complete, exit, output};
use clap::ValueHint;
use std::path::PathBuf;
use tramplab_host::Cache;
use tramplab_kernel::{
    self as kernel, Source,
    source::{self, BASE_TAG},
};
use tramplab_lab::{
    error::{Error, Result},
    place,
};
use tramplab_model::called::called;

#[derive(clap::Args)]
pub struct Args {
    /// A kernel of Debian's sources or of a tarball, such as 6.12-source
    #[arg(value_name = "KERNEL", add = complete::kernels())]
    kernel: String,
    /// Where to put them: a folder that is empty or does not exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
}

pub fn source(args: &Args) -> Result<u8> {
    let Args { kernel, folder } = args;
    let cache = Cache::open(true)?;
    let found = kernel::find(kernel, &place().kernels_with(kernel))?;
    let Some(Source::Built(recipe)) = found.first().map(|manifest| &manifest.source) else {
        let message = format!("kernel {kernel} is prebuilt: name one that is built from sources");
        return Err(Error::Usage(message));
    };
    let mut progress = |line: &str| eprintln!("{line}");
    let sources = source::resolve(&recipe.tree, &cache, &mut progress)?;
    sources.commit_into(folder, &cache, &mut progress)?;
    let (folder, called) = (folder.display(), called());
    let told = format!(
        "{folder}: {}, tag {BASE_TAG}\nMeasure your commits:\n  {called} vm-test --kernel {kernel} \
         --series <(git -C {folder} format-patch --stdout {BASE_TAG}..)\n",
        sources.described
    );
    output::print(told.as_bytes())?;
    Ok(exit::PASS)
}
