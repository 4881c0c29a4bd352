-- Tables, indices, transactions, and a memory-mapped file. The test `sqlite` compares the output with that on
-- Linux.
PRAGMA mmap_size = 67108864;
PRAGMA journal_mode = WAL;
CREATE TABLE rows (id INTEGER PRIMARY KEY, word TEXT, number INTEGER);
WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 20000)
    INSERT INTO rows (word, number) SELECT printf('%08x', x * 2654435761 % 4294967296), x % 97 FROM n;
CREATE INDEX by_word ON rows (word);
SELECT count(*), sum(number) FROM rows;
SELECT word FROM rows ORDER BY word LIMIT 3;
BEGIN;
DELETE FROM rows WHERE number < 50;
ROLLBACK;
UPDATE rows SET word = upper(word) WHERE number = 96;
SELECT number, count(*), min(word), max(word) FROM rows GROUP BY number ORDER BY number DESC LIMIT 3;
PRAGMA integrity_check;
VACUUM;
PRAGMA page_count;
