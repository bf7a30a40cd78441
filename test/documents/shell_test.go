package documents

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/redistest"
)

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh *\n(.*?)^```")
	commands   = regexp.MustCompile(`(?m)^\S.*(?:\n  .*)*`)
	shellCode  = regexp.MustCompile("`redis-cli [^`]*`")
	assignment = regexp.MustCompile(`^(\w+=\S+ *)+(#.*)?$`)
)

// Each command of the pages that begins with redis-cli runs as it stands, on a server where a Lock is held. Such commands
// are in blocks of sh, with assignments and comments only. A line that begins with two spaces belongs to the one before.
func TestShellLinesOfTheDocumentsRun(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	real, err := exec.LookPath("redis-cli")
	if err != nil {
		if os.Getenv("RLOCK_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	server := redistest.Start(t)
	rdb := server.Client()
	client, err := rlock.New(rdb, rlock.WithPrefix("app:"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	lease, err := client.NewFencedLock("order:7").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := client.ID()
	for end := time.Now().Add(30 * time.Second); rdb.Exists(t.Context(), "app:rlock:client:"+id[:21]).Val() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the client has not said which process it is")
		}
	}

	// What the pages call redis-cli is that of this server, and fails if Redis replies with an error.
	bin := t.TempDir()
	wrapper := "#!/bin/sh\nexec '" + real + "' -e -p " + strconv.Itoa(server.Port()) + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "redis-cli"), []byte(wrapper), 0o700); err != nil {
		t.Fatal(err)
	}
	// The pages have one client and one hold for all.
	const pageID = "4b5a8f3e-3f8d-8a1c-9e07-0d1f5d7a4c11"
	actual := strings.NewReplacer(pageID+":3", lease.HoldID(), pageID, id, pageID[:21], id[:21])
	want := map[string]string{ // what a line has to show
		`redis-cli TYPE "$N"`:                                     `^hash$`,
		`redis-cli HGETALL "$N"`:                                  regexp.QuoteMeta(lease.HoldID()) + `\n1`,
		`redis-cli GET app:rlock:client:`:                         `"pid":` + strconv.Itoa(os.Getpid()),
		`redis-cli PTTL "$N"`:                                     `^[12]\d{4}$`,
		`redis-cli GET "redisson_lock_token:{$N}"`:                `^1$`,
		`redis-cli SCAN 0 MATCH 'app:*' TYPE hash COUNT 1000`:     `(?m)^app:order:7$`,
		`redis-cli EVAL "if redis.call('HEXISTS', KEYS[1], ARGV[`: `^0$`, // it was free then, and nobody listened
	}
	for _, page := range append(files(t, "docs/*.md"), "README.md") {
		text := read(t, page)
		ran := 0
		for _, block := range shellBlock.FindAllStringSubmatch(text, -1) {
			if !strings.Contains("\n"+block[1], "\nredis-cli ") {
				continue
			}
			set := ""
			for _, line := range commands.FindAllString(block[1], -1) {
				line = strings.TrimSpace(line)
				if strings.HasPrefix(line, "#") {
					continue
				}
				if assignment.MatchString(line) {
					set += line + "\n"
					continue
				}
				if !strings.HasPrefix(line, "redis-cli ") {
					t.Errorf("%s: this line does not run: %s", page, line)
					continue
				}
				ran++
				cmd := exec.CommandContext(t.Context(), "sh", "-euc", actual.Replace(set+line))
				cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %s\n%v: %s", page, line, err, out)
				}
				for begin, shows := range want {
					if strings.HasPrefix(line, begin) {
						delete(want, begin)
						if !regexp.MustCompile(shows).MatchString(strings.TrimSpace(string(out))) {
							t.Errorf("%s: %s\nwant %s, got %s", page, line, shows, out)
						}
					}
				}
			}
		}
		if all := strings.Count("\n"+text, "\nredis-cli "); ran != all {
			t.Errorf("%s: %d lines begin with redis-cli, %d of them in blocks of sh", page, all, ran)
		}
		for _, code := range shellCode.FindAllString(text, -1) {
			if !strings.HasPrefix(code, "`redis-cli --cluster ") {
				t.Errorf("%s: no test runs this: %s; it belongs into a block of sh", page, code)
			}
		}
	}
	for line := range want {
		t.Errorf("no page has this line: %s", line)
	}
}
