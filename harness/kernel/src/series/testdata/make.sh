#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# How the files of this folder were made: git 2.47.3, b4 0.16.0, diffutils, Python. Run in an empty folder:
# make.sh THIS_FOLDER B4
set -eu
OUT=$1 B4=$2
export GIT_CONFIG_GLOBAL=/dev/null HOME=$PWD TZ=UTC
export GIT_AUTHOR_NAME="Jörg Doe" GIT_AUTHOR_EMAIL=joerg@example.com GIT_COMMITTER_NAME="Jörg Doe" GIT_COMMITTER_EMAIL=joerg@example.com
export GIT_AUTHOR_DATE="2026-03-02T10:00:00Z" GIT_COMMITTER_DATE="2026-03-02T10:00:00Z"
mkdir r && cd r && git init -q -b main
mkdir -p kernel/bpf include
{ echo '// trampoline'; seq -f 'int line_%g;' 1 40; } > kernel/bpf/trampoline.c
printf '#define A 1\n#define B 2\n#define C 3\n' > include/bpf.h
printf 'obj-y += trampoline.o\n' > kernel/bpf/Makefile
printf 'old\nfile\nto\nmove\nwith\nenough\nlines\n' > kernel/bpf/old.c
printf 'caf\xe9\nline\n' > kernel/bpf/latin1.txt
printf 'one\r\ntwo\r\n' > kernel/bpf/dos.txt
printf '\0\1\2\3blob' > kernel/bpf/blob.bin
git add -A; git commit -qm base; BASE=$(git rev-parse HEAD)
sob=$'\n\nSigned-off-by: Jörg Doe <joerg@example.com>'
sed -i 's/line_3;/line_three;/; s/line_30;/line_thirty;/' kernel/bpf/trampoline.c
git commit -qam "bpf: Name two lines in full

From here on a log message with an = sign and an ümlaut, and a line that is longer than most are.$sob"
git mv kernel/bpf/old.c kernel/bpf/new.c; sed -i 's/enough/more than enough/' kernel/bpf/new.c
echo 'obj-y += new.o' >> kernel/bpf/Makefile; git commit -qam "bpf: Move the old file$sob"
echo 'int added;' > kernel/bpf/added.c; git rm -q include/bpf.h; chmod +x kernel/bpf/Makefile; git add -A
git commit -qam "bpf: Überzeugend: add one, remove one and make one executable, with a long subject$sob"
printf '\0\4\5\6blob' > kernel/bpf/blob.bin
git commit -qam "bpf: Change what is not plain text$sob"
cover() { sed -i 's/\*\*\* SUBJECT HERE \*\*\*/bpf: Tidy the trampoline/; s/\*\*\* BLURB HERE \*\*\*/Four small things./' "$1"; }
git format-patch -q --cover-letter --base=$BASE -v2 -o $OUT/format-patch $BASE..; cover $OUT/format-patch/v2-0000*
git format-patch -q --stdout --cover-letter --base=$BASE -v2 $BASE.. > $OUT/stdout.mbox; cover $OUT/stdout.mbox
git format-patch -q --stdout -1 HEAD~3 > $OUT/single.patch
git format-patch -q --attach --stdout -1 HEAD~3 > $OUT/attached.patch
git format-patch -q --inline --stdout -k -1 HEAD~3 > $OUT/inline.patch
git diff $BASE HEAD~3 > $OUT/bare.diff
for encoding in quoted-printable base64; do
  git send-email --quiet --confirm=never --suppress-cc=all --to=bpf@vger.kernel.org --transfer-encoding=$encoding --sendmail-cmd="cat > $OUT/$encoding.eml; true" $OUT/single.patch
done
printf 'th\xe9\nline\n' > kernel/bpf/latin1.txt; printf 'one\r\nzwei\r\n' > kernel/bpf/dos.txt
git commit -qam "bpf: Change a Latin-1 file and a DOS file$sob"
git format-patch -q --stdout -1 > $OUT/raw.patch
git reset -q --hard HEAD~1
cd ..
mkdir q && (cd q && git -C ../r archive --prefix=a/ $BASE | tar x && git -C ../r archive --prefix=b/ HEAD~3 | tar x
  sed -i 's/obj-y/obj-m/' b/kernel/bpf/Makefile
  mkdir -p $OUT/quilt/sub
  diff -Nru a/kernel/bpf/trampoline.c b/kernel/bpf/trampoline.c > $OUT/quilt/sub/trampoline.patch || true
  (cd b && cp kernel/bpf/Makefile m && diff -u ../a/kernel/bpf/Makefile kernel/bpf/Makefile | sed 's,^--- ../a/,--- ,' > $OUT/quilt/makefile.patch) || true
  cp a/include/bpf.h h && sed 's/A 1/A 0/' h > a/include/bpf.h.new && mkdir c && mkdir c/include && mv a/include/bpf.h.new c/include/bpf.h
  { printf 'Subject: Take A down\nFrom: Jörg Doe <joerg@example.com>\n\nThe wrong way round.\n---\n'; diff -u c/include/bpf.h b/include/bpf.h; } > $OUT/quilt/wrong-way.patch || true)
printf '# in this order\nsub/trampoline.patch\nmakefile.patch -p0  # obj-m\n\nwrong-way.patch -R\n' > $OUT/quilt/series
python3 - $OUT <<'PY'
import glob, re, sys, email, email.policy, email.message
out=sys.argv[1]
paths=sorted(glob.glob(out+'/format-patch/*.patch'))
def mid(v,i): return f'20260302-tidy-v{v}-{i}-0123456789ab@example.com'
def head(v,i): 
    h=f'Message-ID: <{mid(v,i)}>\nX-Mailer: b4 0.16.0\nTo: bpf@vger.kernel.org\n'
    if i: h+=f'In-Reply-To: <{mid(v,0)}>\nReferences: <{mid(v,0)}>\n'
    return h.encode()
def msg(v,i):
    rest=open(paths[i],'rb').read().split(b'\n',1)[1]
    if v==1: rest=rest.replace(b'[PATCH v2 ',b'[PATCH ').replace(b'line_three',b'line_3rd')
    return head(v,i)+rest
def reply(v,i,text):
    return (f'Message-ID: <reply-{v}-{i}@example.org>\nIn-Reply-To: <{mid(v,i)}>\nReferences: <{mid(v,0)}> <{mid(v,i)}>\nFrom: A Reader <reader@example.org>\nDate: Mon, 2 Mar 2026 13:00:00 +0000\nSubject: Re: [PATCH v{v} {i}/4] bpf: x\n\n{text}').encode()
# As public-inbox does: mboxrd.
def box(ms): return b''.join(b'From mboxrd@z Thu Jan  1 00:00:00 1970\n'+re.sub(rb'(?m)^(>*From )',rb'>\1',m.rstrip(b'\n'))+b'\n\n' for m in ms)
rev='On Mon, Joerg wrote:\n> Four small things.\n\nLooks good.\n\nReviewed-by: A Reader <reader@example.org>\n'
sug='How about\n\ndiff --git a/kernel/bpf/trampoline.c b/kernel/bpf/trampoline.c\n--- a/kernel/bpf/trampoline.c\n+++ b/kernel/bpf/trampoline.c\n@@ -1 +1 @@\n-// trampoline\n+// trampolines\n'
ms=[msg(2,3),reply(2,1,sug),msg(2,0),msg(2,4),reply(2,0,rev),msg(2,1),msg(2,2),msg(2,2)]
open(out+'/lore.mbox','wb').write(box(ms))
open(out+'/versions.mbox','wb').write(box([msg(1,i) for i in range(5)]+[reply(1,0,rev)]+ms))
open('b4in.mbox','wb').write(box(ms))
single=open(out+'/single.patch','rb').read().split(b'\n',1)[1]
# Exchange sends CRLF inside base64.
m=email.message_from_bytes(single,policy=email.policy.SMTP)
m.set_content(m.get_payload(decode=True).decode(),charset='utf-8',cte='base64')
open(out+'/base64-crlf.eml','wb').write(m.as_bytes(policy=email.policy.SMTP))
open(out+'/dos.patch','wb').write(open(out+'/single.patch','rb').read().replace(b'\n',b'\r\n'))
h,b=single.split(b'\n\n',1)
h=h.replace(b'Content-Type: text/plain; charset=UTF-8',b'Content-Type: text/plain; charset=UTF-8; format=flowed')
b=b''.join((b' '+l if l.startswith(b' ') or l.startswith(b'From ') or l.startswith(b'>') else l) for l in b.splitlines(True))
open(out+'/flowed.eml','wb').write(h+b'\n\n'+b)
PY
$B4 --no-interactive --offline-mode am -m b4in.mbox -o $OUT/b4 -- 20260302-tidy-v2-0-0123456789ab@example.com </dev/null 2>/dev/null
$B4 --no-interactive --offline-mode am -M -m b4in.mbox -o $OUT/b4 -- 20260302-tidy-v2-0-0123456789ab@example.com </dev/null 2>/dev/null
