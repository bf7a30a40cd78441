package fence_test

import (
	"database/sql"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/sqltest"
)

// The statements for MySQL on the page of fencing show a late holder the higher token, and keep that.
func TestStatementsOfThePageForMySQL(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## MySQL\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?ms)^```sql\n(.*?)^```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 2 {
		t.Fatalf("%q", blocks)
	}
	statements := strings.Split(regexp.MustCompile(`(?m)^--.*$`).ReplaceAllString(blocks[1][1], ""), ";")
	db, err := sql.Open("mysql", sqltest.MySQL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	locktest.Eventually(t, "the database answers", func() bool { return db.Ping() == nil })
	exec(t, db, blocks[0][1])

	name := []byte("account:7")
	transaction := func(token int64) (seen int64) {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for _, statement := range statements {
			var err error
			switch statement = strings.TrimSpace(statement); {
			case statement == "":
			case strings.HasPrefix(statement, "INSERT"):
				_, err = conn.ExecContext(t.Context(), statement, name, token, token)
			case strings.HasPrefix(statement, "SELECT"):
				err = conn.QueryRowContext(t.Context(), statement, name).Scan(&seen)
			case statement == "COMMIT" && seen > token:
				_, err = conn.ExecContext(t.Context(), "ROLLBACK")
			default:
				_, err = conn.ExecContext(t.Context(), statement)
			}
			if err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		return seen
	}
	for _, c := range []struct{ token, want int64 }{{5, 5}, {4, 5}, {5, 5}, {6, 6}, {5, 6}} {
		if seen := transaction(c.token); seen != c.want {
			t.Errorf("token %d reads %d; want %d", c.token, seen, c.want)
		}
	}
	var kept int64
	if err := db.QueryRow("SELECT token FROM fence").Scan(&kept); err != nil || kept != 6 {
		t.Errorf("the token is %d, %v", kept, err)
	}
}
