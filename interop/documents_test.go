//go:build unix

package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block is what a block of the pages stands in: the variables and methods that it uses, and Redisson.
const block = `import java.util.concurrent.*;
import org.redisson.*;
import org.redisson.api.*;
import org.redisson.config.*;

abstract class %s {
	RedissonClient redisson;
	String id;

	abstract void work();
	abstract void book(String id);

	void block() throws Exception {
%s	}
}
`

// Each block of Java on the pages compiles with the Redisson of these tests. Those for ZooKeeper, whose Curator is not
// here, are parsed only.
func TestJavaOfTheDocumentsCompiles(t *testing.T) {
	javac, err := exec.LookPath("javac")
	if err != nil {
		t.Fatal(err) // Maven has compiled
	}
	dir := t.TempDir()
	var compiled, parsed []string // files
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../*/README.md", "../*/*/README.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil || len(pages) == 0 {
			t.Fatal(pattern, err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range regexp.MustCompile("(?ms)^```java\n(.*?)^```").FindAllSubmatch(text, -1) {
				class := fmt.Sprintf("%s_%d", regexp.MustCompile(`\W`).ReplaceAllString(strings.TrimSuffix(filepath.Base(page), ".md"), "_"), i+1)
				file := filepath.Join(dir, class+".java")
				if err := os.WriteFile(file, fmt.Appendf(nil, block, class, m[1]), 0o600); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(m[1]), "Curator") {
					parsed = append(parsed, file)
				} else {
					compiled = append(compiled, file)
				}
			}
		}
	}
	if len(compiled) < 3 || len(parsed) < 1 {
		t.Fatalf("%d blocks to compile, %d to parse", len(compiled), len(parsed))
	}
	ctx, cancel := context.WithTimeout(t.Context(), buildPatience)
	defer cancel()
	for flag, files := range map[string][]string{"-proc:none": compiled, "-proc:only": parsed} { // only: before it is compiled
		args := append([]string{flag, "-cp", classPath, "-d", dir}, files...)
		if out, err := exec.CommandContext(ctx, javac, args...).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
