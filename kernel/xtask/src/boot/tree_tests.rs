//! Tests of `tree.rs`: links, conflicts, and copies of temporary folders of this machine ([`Scratch`]).

use super::*;
use crate::boot::scratch::Scratch;

fn file(text: &str) -> Node {
    Node::File(0o644, 0, Content::Bytes(text.into()))
}

#[test]
fn file_is_put_below_the_target_of_a_linked_folder() {
    let mut tree = Tree::with_skeleton();
    tree.put(Path::new("/bin/x"), file("1")).expect("room");
    assert!(tree.nodes().any(|(path, _)| path == Path::new("/usr/bin/x")));
    assert_eq!(tree.look(Path::new("/bin/../bin/x")), Some(&file("1")));
    assert_eq!(tree.look(Path::new("/bin/y")), None);
}

#[test]
fn conflicting_node_is_reported() {
    let mut tree = Tree::default();
    tree.put(Path::new("/a/b"), file("1")).expect("room");
    assert_eq!(
        tree.put(Path::new("/a/b/c"), file("2")),
        Err("cannot add /a/b/c: /a/b is not a folder".into())
    );
    assert_eq!(tree.put(Path::new("/a"), file("2")), Err("cannot add /a: it is a folder".into()));
    tree.put(Path::new("/a/b"), file("3")).expect("a file replaces a file");
    assert_eq!(tree.look(Path::new("/a/b")), Some(&file("3")));
    for (from, to) in [("/x", "y"), ("/y", "x")] {
        tree.put(Path::new(from), Node::Link(to.into())).expect("a link may have any target");
    }
    assert_eq!(tree.put(Path::new("/x/z"), file("")), Err("cannot add /x/z: its links form a cycle".into()));
}

#[test]
fn link_is_copied_with_its_target() {
    let folder = Scratch::new("tree").expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("real")).expect("a folder");
    fs::write(at("real/program"), "text").expect("a file");
    std::os::unix::fs::symlink("real", at("short")).expect("a link");
    std::os::unix::fs::symlink("../short/program", at("real/other")).expect("a link");
    let mut tree = Tree::default();
    let taken = tree.take(&at("short/other")).expect("the file exists");
    assert_eq!(taken, at("real/program"));
    assert_eq!(tree.nodes.get(&at("short")), Some(&Node::Link("real".into())));
    assert_eq!(tree.nodes.get(&at("real/other")), Some(&Node::Link("../short/program".into())));
    let Some(Node::File(_, _, content)) = tree.look(&at("short/other")) else { panic!("no file") };
    assert_eq!(*content, Content::Host(at("real/program")));
    assert!(tree.take(&at("absent")).is_err_and(|why| why.contains("absent")));
}

#[test]
fn folder_is_copied_with_everything_in_it() {
    let folder = Scratch::new("whole").expect("a folder");
    fs::create_dir_all(folder.path().join("a/b")).expect("a folder");
    fs::write(folder.path().join("a/b/c"), "text").expect("a file");
    let mut tree = Tree::with_skeleton();
    tree.take_all(folder.path(), Path::new("/")).expect("readable");
    assert!(matches!(tree.look(Path::new("/a/b/c")), Some(Node::File(..))));
}
