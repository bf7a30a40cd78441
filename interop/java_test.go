//go:build unix

package interop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// buildPatience bounds a run of Maven, which may have to download some 20 MB.
const buildPatience = 10 * time.Minute

// buildJava compiles the driver, unless that was done for the same sources
// before, and returns its class path.
func buildJava() (string, error) {
	stamp, err := fingerprint("java/pom.xml", "java/src")
	if err != nil {
		return "", err
	}
	if old, err := os.ReadFile("java/target/stamp"); err == nil && bytes.Equal(old, stamp) {
		if path, err := readClassPath(); err == nil {
			return path, nil
		}
	}
	// Off-line first: once the machine has what it needs, nothing is looked up.
	out, err := mvn("--offline", "--batch-mode", "compile")
	if err != nil {
		out, err = mvn("--batch-mode", "compile")
	}
	if err != nil {
		return "", fmt.Errorf("building the Java driver: %w\n%s", err, out)
	}
	path, err := readClassPath()
	if err != nil {
		return "", err
	}
	return path, os.WriteFile("java/target/stamp", stamp, 0o666)
}

func mvn(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), buildPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mvn", append([]string{"--quiet"}, args...)...)
	cmd.Dir = "java"
	cmd.WaitDelay = 10 * time.Second
	return cmd.CombinedOutput()
}

// readClassPath fails if a part of it is no longer there.
func readClassPath() (string, error) {
	jars, err := os.ReadFile("java/target/classpath")
	if err != nil {
		return "", err
	}
	classes, err := filepath.Abs("java/target/classes")
	if err != nil {
		return "", err
	}
	path := append([]string{classes}, filepath.SplitList(strings.TrimSpace(string(jars)))...)
	for _, file := range path {
		if _, err := os.Stat(file); err != nil {
			return "", err
		}
	}
	return strings.Join(path, string(filepath.ListSeparator)), nil
}

// fingerprint is that of all files below the given ones.
func fingerprint(roots ...string) ([]byte, error) {
	sum := sha256.New()
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			fmt.Fprintf(sum, "%s %d\n%s", path, len(content), content)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return fmt.Appendf(nil, "%x\n", sum.Sum(nil)), nil
}
