//! Package managers: directories that are unpacked aside and renamed into place, and trees whose files
//! are names of those in a store.

use super::{compared, nothing};
use crate::fixture::MODES;

/// Packages as an installation left them, with programs in `.bin`, and the next versions as archives.
const INSTALLED: &str = r#"
mkdir -p node_modules/.bin cache
for i in $(seq 12); do
    p=node_modules/p$i
    mkdir -p $p/lib/deep $p/node_modules/inner
    for j in $(seq 8); do echo "old $i $j" > $p/lib/f$j; done
    echo inner > $p/node_modules/inner/index.js
    printf '#!/bin/sh\necho old %s\n' $i > $p/cli.js
    chmod 755 $p/cli.js
    ln -s ../p$i/cli.js node_modules/.bin/p$i
done
mkdir package
for i in $(seq 12); do
    rm -rf package/*
    mkdir -p package/lib/new
    for j in $(seq 5 12); do echo "new $i $j" > package/lib/new/f$j; done
    printf '#!/bin/sh\necho new %s\n' $i > package/cli.js
    tar -czf cache/p$i.tgz --sort=name --mtime=@0 package
done
rm -r package
"#;

/// Each package is retired by a rename, the new one unpacked, renamed into place and linked to; what
/// was retired is removed at the end, or renamed back if something fails.
#[test]
fn packages_are_retired_and_replaced() {
    let name = "packages_are_retired_and_replaced";
    compared(
        name,
        &MODES,
        &["tar", "gzip", "python3"],
        INSTALLED,
        |twins| {
            twins.run(
                r#"
            cd node_modules
            replace() {
                mv -T p$1 .p$1-RETIRED
                mkdir .unpack-$1
                tar -xzf ../cache/p$1.tgz -C .unpack-$1 --strip-components=1
                chmod 755 .unpack-$1/cli.js
                mv -T .unpack-$1 p$1
                ln -sfn ../p$1/cli.js .bin/p$1
            }
            for i in $(seq 12); do replace $i & done
            wait
            for i in $(seq 12); do .bin/p$i; done
            ls -A | sort
            # One that fails goes back.
            rm -r p3
            mv -T .p3-RETIRED p3
            .bin/p3
            find p3 -type f | sort | xargs cat | sort | uniq -c
            rm -rf .p*-RETIRED
            ls -A | sort
            # As a directory is replaced that something is in, and one in use.
            mkdir full; echo in > full/file
            mv -T p1 full 2>/dev/null || echo 'not replaced'
            (cd p2; mv ../p2 ../p2-moved; cat lib/new/f5; rm -rf ../p2-moved; ls -A . | wc -l)
            python3 - <<END
import os
os.rename('p4', 'p4-a'); os.mkdir('p4')
os.rename('p4-a', 'p4')
print(sorted(os.listdir('p4')))
END
            "#,
            );
            twins.compare(nothing);
            twins.remount();
            twins.compare(nothing);
            twins.run("rm -rf node_modules; ls -A");
        },
    );
}

/// A store of files by number, and a tree whose files are names of some of them.
const STORE: &str = r#"
mkdir -p store/a store/b site
for i in $(seq 80); do head -c $((i * 100)) /dev/zero | tr '\0' "$(printf '\\%o' $((33 + i)))" > store/a/$i; done
chmod 444 store/a/*
cp -al store/a site/old
"#;

#[test]
fn farms_of_hard_links_work() {
    let name = "farms_of_hard_links_work";
    compared(name, &MODES, &["rsync", "python3"], STORE, |twins| {
        twins.run(
            r#"
            cp -al store/a site/new
            mkdir environment
            python3 - <<END
import os
for at in range(1, 81):
    os.link(f'store/a/{at}', f'environment/{at}')
print({os.stat(f'environment/{at}').st_nlink for at in range(1, 81)})
print(all(os.path.samefile(f'environment/{at}', f'site/old/{at}') for at in range(1, 81)))
# An installer copies what it cannot link: a change of its copy is not one of the store.
os.link('store/a/1', 'environment/again')
with open('environment/temp', 'w') as file:
    file.write('patched')
os.replace('environment/temp', 'environment/1')
print(os.stat('store/a/1').st_nlink, open('environment/1').read())
END
            # What is written through one name is read through all.
            chmod 644 store/a/2
            printf X | dd of=environment/2 conv=notrunc status=none
            cmp store/a/2 site/new/2
            head -c 2 site/old/2 | od -c | head -1
            rsync -a --link-dest="$PWD/site/old" site/new/ site/third/
            find site -type f -printf '%n\n' | sort | uniq -c
            rm -rf store
            find . -type f -links 3 | wc -l
            find . -samefile site/old/7 | sort
            mv site/old moved
            find . -type f -printf '%n\n' | sort | uniq -c
            "#,
        );
        twins.compare(nothing);
        twins.remount();
        twins.compare(nothing);
        twins.run("rm -rf moved site; find . -type f -printf '%n %p\n' | sort");
    });
}
