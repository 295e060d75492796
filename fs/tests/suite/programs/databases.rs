//! Databases: sqlite, by several processes at once, and after one of them is gone in the middle.

use std::path::Path;

use super::compared;
use crate::fixture::MODES;

/// A database of two accounts, and one that is closed in the middle of its log.
const FILL: &str = r#"
python3 - <<END
import os, sqlite3
for name in ('bank', 'left'):
    bank = sqlite3.connect(name + '.db', isolation_level=None)
    bank.execute('pragma journal_mode=wal')
    bank.execute('create table account (name text primary key, money int)')
    bank.execute("insert into account values ('a', 1000), ('b', 1000)")
    bank.execute('create table entry (id integer primary key, writer int, number int)')
# Ends without a checkpoint.
os._exit(0)
END
"#;

/// Money goes to and fro, and nobody sees any appear or vanish.
const BANK: &str = r#"
cat > bank.py <<'END'
import multiprocessing, os, sqlite3, sys

def connect(path):
    bank = sqlite3.connect(path, timeout=300, isolation_level=None)
    bank.execute('pragma synchronous=normal')
    return bank

def writer(path, who):
    bank = connect(path)
    for number in range(40):
        bank.execute('begin immediate')
        bank.execute("update account set money = money - 1 where name = 'a'")
        bank.execute("update account set money = money + 1 where name = 'b'")
        bank.execute('insert into entry (writer, number) values (?, ?)', (who, number))
        bank.execute('commit')

def reader(path):
    bank = connect(path)
    last = 0
    while last < 160:
        bank.execute('begin')
        money, = bank.execute('select sum(money) from account').fetchone()
        moved, = bank.execute("select money - 1000 from account where name = 'b'").fetchone()
        count, = bank.execute('select count(*) from entry').fetchone()
        bank.execute('commit')
        assert money == 2000, money
        assert moved == count and count >= last, (moved, count, last)
        last = count

def gone(path):
    bank = connect(path)
    bank.execute('begin immediate')
    bank.execute('delete from account')
    bank.execute('insert into entry (writer, number) values (99, 99)')
    os._exit(7)

path, mode = sys.argv[1:]
print(connect(path).execute('pragma journal_mode=' + mode).fetchone())
start = [multiprocessing.Process(target=writer, args=(path, who)) for who in range(4)]
start += [multiprocessing.Process(target=reader, args=(path,)) for _ in range(2)]
start.append(multiprocessing.Process(target=gone, args=(path,)))
for process in start:
    process.start()
for process in start:
    process.join()
print([process.exitcode for process in start])
bank = connect(path)
print(bank.execute('select * from account order by name').fetchall())
print(bank.execute('select writer, count(*), sum(number) from entry group by writer').fetchall())
print(bank.execute('pragma integrity_check').fetchone())
print(bank.execute('pragma wal_checkpoint(truncate)').fetchone()[0])
bank.execute('vacuum')
bank.close()
END
"#;

#[test]
fn databases_are_shared_by_processes() {
    let name = "databases_are_shared_by_processes";
    let is_database = |path: &Path| path.extension().is_some_and(|ext| ext == "db");
    compared(name, &MODES, &["python3", "pydoc3"], FILL, |twins| {
        twins.run(BANK);
        twins.run("ls left.db*; python3 bank.py bank.db wal; ls");
        twins.remount();
        twins.run("python3 bank.py left.db delete; ls");
        twins.compare(is_database);
    });
}
