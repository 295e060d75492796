//! Archives and copies: what goes into them comes out of them, in a view and beside it.

use std::path::Path;

use super::compared;
use crate::fixture::MODES;

/// Files of all kinds, with names, times and modes of all kinds.
const FILL: &str = r#"
mkdir -p tree/deep/er tree/sticky tree/group
cd tree
echo one > one
ln one deep/hard
ln one deep/er/harder
ln -s ../one deep/soft
ln -s nowhere dangling
mkfifo pipe
mknod device c 1 3
truncate -s 3M sparse
printf middle | dd of=sparse bs=1 seek=1000000 conv=notrunc status=none
head -c 300000 /dev/zero | tr '\0' z > large
touch $'new\nline' $'tab\t' 'späce' $'\377byte' -- '-dash' '*'
head -c 100 /dev/zero | tr '\0' n > "$(printf 'n%.0s' $(seq 255))"
setfattr -n user.note -v value one
setfattr -n user.binary -v 0x00ff00 deep
setfattr -n trusted.note -v trusted large
setfacl -m u:4001:rw,g:4002:r large
setfacl -d -m u:4001:rwx group
chmod 4711 one
chmod 2755 group
chmod 1777 sticky
chown 4001:4002 sparse deep/er
chown -h 4001:4002 dangling
chmod 000 late-mode 2>/dev/null || { touch late-mode; chmod 000 late-mode; }
find . -exec touch -h -d '2011-11-11 11:11:11.123456789' {} +
cd ..
"#;

/// Copies of the tree by all means, and what they are. What cannot be sparse on one disk is on none,
/// so only whether a file has holes is compared.
const COPY: &str = r#"
shown() { (cd "$1"; find . -printf '%P|%y|%m|%U:%G|%n|%T@|%l|' \( -type d -printf '\n' -o -printf '%s\n' \) | sort; \
    find . -print0 | sort -z | xargs -0 getfattr -d -m - -h); }
holes() { [ $(($(stat -c '%b*512' "$1"))) -lt $(stat -c %s "$1") ] && echo "$1 has holes"; }
tar --create --sparse --xattrs --xattrs-include='*' --acls --numeric-owner -f archive.tar -C tree .
mkdir by-tar
tar --extract --xattrs --xattrs-include='*' --acls --numeric-owner -pf archive.tar -C by-tar
tar --compare --numeric-owner -f archive.tar -C tree && echo 'tar finds no difference'
tar -cf - -C tree . | tar -xpf - -C "$OUT"
rm archive.tar
cp -a tree by-cp
cp -a --sparse=always --reflink=auto tree by-sparse-cp
rsync -aHAXS --devices --specials tree/ by-rsync/
rsync -aHAXSn --itemize-changes --checksum tree/ by-cp/
shown tree > shown
for copy in by-tar by-cp by-sparse-cp by-rsync; do
    shown $copy | diff shown - && echo "$copy is the same"
    diff -r --no-dereference -x pipe -x device tree $copy && echo "$copy has the same in it"
    holes $copy/sparse
    [ $copy/one -ef $copy/deep/er/harder ] && echo "$copy has its hard links"
done
diff -r --no-dereference -x pipe -x device tree "$OUT" && echo 'so has what went out'
rm -rf "${OUT:?}"/*
cat shown
"#;

/// The listing of a tree has the sizes of what others do not show.
fn is_listing(path: &Path) -> bool {
    path == Path::new("shown")
}

#[test]
fn copies_and_archives_lose_nothing() {
    let programs = ["tar", "rsync", "getfattr", "setfacl", "python3"];
    let name = "copies_and_archives_lose_nothing";
    compared(name, &MODES, &programs, FILL, |twins| {
        let said = twins.run(COPY);
        for line in ["by-tar", "by-cp", "by-sparse-cp", "by-rsync"] {
            assert!(said.contains(&format!("{line} is the same\n")), "{said}");
            assert!(
                said.contains(&format!("{line}/sparse has holes\n")),
                "{said}"
            );
        }
        twins.compare(is_listing);
        twins.remount();
        // Onto what is there: nothing is copied that is the same, and what is not there goes.
        twins.run(
            r#"
            touch -d '2012-12-12 12:12:12' tree/large
            echo more >> tree/one
            rm tree/deep/soft
            mv tree/sticky tree/renamed
            rsync -aHAXS --devices --specials --delete --itemize-changes tree/ by-rsync/
            rsync -aHAXS --devices --specials --delete --itemize-changes tree/ by-rsync/
            rsync -a --inplace --no-whole-file --itemize-changes tree/large by-cp/large
            cp -au tree/. by-cp
            mv by-tar/* tree/renamed
            rm -rf by-sparse-cp
            "#,
        );
        twins.compare(is_listing);
    });
}
