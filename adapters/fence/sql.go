package fence

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/go-rlock/rlock"
)

// Dialect is the SQL that a database understands.
type Dialect int

// The zero Dialect means the dialect of the driver, if that is one of modernc.org/sqlite, mattn/go-sqlite3, ncruces/go-sqlite3,
// jackc/pgx, lib/pq and go-sql-driver/mysql. A driver inside a wrapper is not known.
const (
	SQLite     Dialect = iota + 1 // 3.35 and later
	PostgreSQL                    // 9.5 and later
	MySQL                         // and MariaDB, with InnoDB
)

// DefaultTable has one row for each lock, with the highest token that was seen.
const DefaultTable = "fence"

// SQL is where a database keeps tokens. The zero SQL is the table "fence", in the dialect of the driver.
type SQL struct {
	Dialect Dialect
	Table   string         // letters, digits and underscores, maybe after a schema and a dot; DefaultTable if empty
	Options *sql.TxOptions // of the transactions; nil: the defaults of the database
}

// InTx runs fn in a transaction that begins with the token of the lease: see [SQL.InTx].
func InTx(ctx context.Context, db *sql.DB, lease *rlock.Lease, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return SQL{}.InTx(ctx, db, lease, fn)
}

// InTx begins a transaction, raises the token of the lock in it, calls fn, and commits. It returns nil if, and only if,
// the commit was confirmed: then unlock, not before. If the token is lower than one that was committed before,
// fn is not called, nothing is changed, and the error matches [ErrStale]. Once InTx has returned nil, no earlier holder
// can commit another InTx, whatever it still does.
//
// The row of the lock stays locked until the transaction ends: a late transaction waits for it, and is then refused.
// A holder that is stopped inside the transaction therefore keeps its successor waiting in the database, as with
// every row lock; let the database bound that (idle_in_transaction_session_timeout, innodb_lock_wait_timeout).
//
// fn must not commit or roll back. Its context ends with the lease; the transaction is then rolled back, and the error
// matches rlock.ErrLeaseLost, or what else has ended the lease. An error or a panic of fn rolls back too. As with any
// transaction, an error of the commit may leave its outcome unknown, if the connection broke.
//
// For the lease of a MultiLock the tokens of all members are checked. A read lock has no token, and is refused with
// rlock.ErrInvalidArgument, as is a nil db or fn, before anything is sent. InTx does not unlock.
func (s SQL) InTx(ctx context.Context, db *sql.DB, lease *rlock.Lease, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if fn == nil {
		return invalid("the function is nil")
	}
	dialect, table, err := s.of(db)
	if err != nil {
		return err
	}
	if _, err := token(lease); err != nil {
		return err
	}
	leases := []*rlock.Lease{lease}
	if members := lease.Members(); len(members) > 0 {
		leases = members
	}
	for _, l := range leases {
		if _, err := token(l); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = lease.Context(ctx)

	tx, err := db.BeginTx(ctx, s.Options)
	if err != nil {
		return because(ctx, lease, err)
	}
	defer func() { _ = tx.Rollback() }() // without effect after the commit
	for _, l := range leases {           // in the order of their names, so that two transactions do not wait for each other
		seen, err := dialect.raise(ctx, tx, table, rowOf(l.Name()), l.Token())
		if err != nil {
			return because(ctx, lease, err)
		}
		if seen > l.Token() {
			return &StaleError{Resource: l.Name(), Token: l.Token(), Seen: seen}
		}
	}
	if err := fn(ctx, tx); err != nil {
		return because(ctx, lease, err)
	}
	// A driver may commit although the context has just ended.
	if err := lease.Err(); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return because(ctx, lease, err)
	}
	return nil
}

// CreateTable creates the table if it is not there. Better have your migrations do it: the README shows the statements.
func (s SQL) CreateTable(ctx context.Context, db *sql.DB) error {
	dialect, table, err := s.of(db)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+table+" "+map[Dialect]string{
		SQLite:     "(lock TEXT PRIMARY KEY, token INTEGER NOT NULL)",
		PostgreSQL: "(lock text PRIMARY KEY, token bigint NOT NULL)",
		MySQL:      "(name VARBINARY(255) PRIMARY KEY, token BIGINT NOT NULL) ENGINE=InnoDB",
	}[dialect])
	return err
}

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

func (s SQL) of(db *sql.DB) (Dialect, string, error) {
	if db == nil {
		return 0, "", invalid("the database is nil")
	}
	table := s.Table
	if table == "" {
		table = DefaultTable
	}
	if !tableName.MatchString(table) {
		return 0, "", invalid("the name of the table is %q", table)
	}
	switch s.Dialect {
	case SQLite, PostgreSQL, MySQL:
		return s.Dialect, table, nil
	case 0:
	default:
		return 0, "", invalid("there is no Dialect %d", s.Dialect)
	}
	driver := reflect.TypeOf(db.Driver())
	if driver.Kind() == reflect.Pointer {
		driver = driver.Elem()
	}
	for path, dialect := range map[string]Dialect{
		"modernc.org/sqlite":             SQLite,
		"github.com/mattn/go-sqlite3":    SQLite,
		"github.com/ncruces/go-sqlite3/": SQLite,
		"github.com/jackc/pgx/":          PostgreSQL,
		"github.com/lib/pq":              PostgreSQL,
		"github.com/go-sql-driver/mysql": MySQL,
	} {
		if strings.HasPrefix(driver.PkgPath(), path) {
			return dialect, table, nil
		}
	}
	return 0, "", invalid("the dialect of the driver %s is not known: use fence.SQL{Dialect: fence.PostgreSQL}.InTx, or that of your database", driver)
}

// raise writes the token unless a higher one is there, and returns the highest. It keeps the row locked.
func (d Dialect) raise(ctx context.Context, tx *sql.Tx, table, row string, token int64) (seen int64, err error) {
	switch d {
	case SQLite:
		// The first statement writes: a transaction that began with a read could not wait for another's end.
		err = tx.QueryRowContext(ctx, "INSERT INTO "+table+" AS f (lock, token) VALUES (?, ?) "+
			"ON CONFLICT (lock) DO UPDATE SET token = max(f.token, excluded.token) RETURNING token", row, token).Scan(&seen)
	case PostgreSQL:
		err = tx.QueryRowContext(ctx, "INSERT INTO "+table+" AS f (lock, token) VALUES ($1, $2) "+
			"ON CONFLICT (lock) DO UPDATE SET token = GREATEST(f.token, excluded.token) RETURNING f.token", row, token).Scan(&seen)
	case MySQL:
		// ON DUPLICATE KEY takes the exclusive lock immediately. INSERT IGNORE would take a shared one first: a deadlock of two.
		_, err = tx.ExecContext(ctx, "INSERT INTO "+table+" (name, token) VALUES (?, ?) "+
			"ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)", []byte(row), token, token)
		if err == nil {
			err = tx.QueryRowContext(ctx, "SELECT token FROM "+table+" WHERE name = ? FOR UPDATE", []byte(row)).Scan(&seen)
		}
	}
	return seen, err
}

// rowOf is the primary key for a lock: its name, or a hash of a name that a database would not keep as it is.
func rowOf(lock string) string {
	if len(lock) <= 255 && utf8.ValidString(lock) && !strings.Contains(lock, "\x00") && !strings.HasPrefix(lock, "sha256:") {
		return lock
	}
	sum := sha256.Sum256([]byte(lock))
	return "sha256:" + hex.EncodeToString(sum[:])
}
