//! Ansible: a role that qualifies hosts and leaves nothing on them, and a playbook that uses it.

use super::yaml::quoted;
use super::{AbsolutePath, EngineFile, Name, PlanName};

/// What is asked of Ansible.
#[derive(Debug, Clone)]
pub struct AnsibleRequest {
    /// Name of the playbook.
    pub name: Name,
    /// Where nearmetal is on the machine that runs Ansible.
    pub program: AbsolutePath,
    /// The plan; a file is one of the machine that runs Ansible.
    pub plan: PlanName,
    /// Accepted runs on that machine, if a gate judges too.
    pub baseline: Option<AbsolutePath>,
}

/// The playbook and the role.
pub fn files(request: &AnsibleRequest) -> Vec<EngineFile> {
    let file =
        |name: &str, text: String| EngineFile { name: name.to_string(), text, is_program: false };
    vec![
        file(&format!("{}.yml", request.name), PLAYBOOK.to_string()),
        file("roles/nearmetal/defaults/main.yml", defaults(request)),
        file("roles/nearmetal/meta/main.yml", META.to_string()),
        file("roles/nearmetal/meta/argument_specs.yml", ARGUMENTS.to_string()),
        file("roles/nearmetal/tasks/main.yml", TASKS.to_string()),
    ]
}

/// Words of the user are `!unsafe`: Ansible takes no braces in them for an expression.
fn defaults(request: &AnsibleRequest) -> String {
    let plan = request.plan.to_string();
    let (file, part) = match request.plan.file() {
        Some((file, part)) => (file, part),
        None => ("", ""),
    };
    let plan = if file.is_empty() { plan } else { String::new() };
    let baseline = request.baseline.as_ref().map_or(String::new(), ToString::to_string);
    format!(
        "---\n\
         # The program on the machine that runs Ansible, and its SHA-256 if only one is accepted.\n\
         nearmetal_program: {}\n\
         nearmetal_sha256: \"\"\n\
         # A built-in plan, or a file of the machine that runs Ansible and perhaps a part of it.\n\
         nearmetal_plan: {}\n\
         nearmetal_plan_file: {}\n\
         nearmetal_plan_part: {}\n\
         # Accepted runs on the machine that runs Ansible: a file or folder of `baseline save`.\n\
         nearmetal_baseline: {}\n\
         # More options of `nearmetal qualify`.\n\
         nearmetal_options: []\n\
         # Where the results of the hosts are put.\n\
         nearmetal_results: \"{{{{ playbook_dir }}}}/results\"\n\
         # Whether a host passes whose figures decide nothing.\n\
         nearmetal_accept_inconclusive: false\n",
        text(&request.program.to_string()),
        text(&plan),
        text(file),
        text(part),
        text(&baseline),
    )
}

/// A word without expressions: Ansible takes an empty one with the tag for none.
fn text(word: &str) -> String {
    match word {
        "" => "\"\"".to_string(),
        _ => format!("!unsafe {}", quoted(word)),
    }
}

const PLAYBOOK: &str = "\
---
- name: Qualify hosts with nearmetal
  hosts: all
  gather_facts: false
  # A host that fails stops no other one.
  roles:
    - role: nearmetal
";

const META: &str = "\
---
galaxy_info:
  role_name: nearmetal
  author: nearmetal
  description: Qualifies a host and leaves nothing on it
  license: MIT OR Apache-2.0
  min_ansible_version: \"2.14\"
  platforms:
    - name: GenericLinux
      versions:
        - all
dependencies: []
";

const ARGUMENTS: &str = "\
---
argument_specs:
  main:
    short_description: Qualifies a host and leaves nothing on it
    options:
      nearmetal_program:
        description: The program on the machine that runs Ansible.
        type: str
      nearmetal_sha256:
        description: Its SHA-256, if only this program is accepted.
        type: str
      nearmetal_plan:
        description: A built-in plan.
        type: str
      nearmetal_plan_file:
        description: A plan of the machine that runs Ansible, instead.
        type: str
      nearmetal_plan_part:
        description: The part of that file.
        type: str
      nearmetal_baseline:
        description: Accepted runs on the machine that runs Ansible.
        type: str
      nearmetal_options:
        description: More options of nearmetal qualify.
        type: list
        elements: str
      nearmetal_results:
        description: Where the results of the hosts are put.
        type: str
      nearmetal_accept_inconclusive:
        description: Whether a host passes whose figures decide nothing.
        type: bool
";

/// The measurement changes nothing that stays on the host; only a result that is fetched is a
/// change. A check (`--check`) runs nothing.
const TASKS: &str = r#"---
- name: Qualify the host and leave nothing on it
  when: not ansible_check_mode
  block:
    - name: Look at the program
      ansible.builtin.stat:
        path: "{{ nearmetal_program }}"
        checksum_algorithm: sha256
      delegate_to: localhost
      become: false
      register: nearmetal_source

    - name: Accept only the wanted program
      ansible.builtin.assert:
        that:
          - nearmetal_source.stat.exists
          - nearmetal_sha256 in ['', nearmetal_source.stat.checksum | default('')]
        fail_msg: >-
          {{ nearmetal_program }} is not there, or its SHA-256 is not nearmetal_sha256
        quiet: true

    - name: Make a folder
      ansible.builtin.tempfile:
        state: directory
        prefix: nearmetal-
      register: nearmetal_folder
      changed_when: false

    - name: Copy the program
      ansible.builtin.copy:
        src: "{{ nearmetal_program }}"
        dest: "{{ nearmetal_folder.path }}/nearmetal"
        mode: "0700"
      changed_when: false

    - name: Look at the copy
      ansible.builtin.stat:
        path: "{{ nearmetal_folder.path }}/nearmetal"
        checksum_algorithm: sha256
      register: nearmetal_copy

    - name: Check the sum of the copy
      ansible.builtin.assert:
        that: nearmetal_copy.stat.checksum == nearmetal_source.stat.checksum
        fail_msg: The copy of nearmetal has another SHA-256 than the program
        quiet: true

    - name: Copy the plan
      ansible.builtin.copy:
        src: "{{ nearmetal_plan_file }}"
        dest: "{{ nearmetal_folder.path }}/plan.toml"
        mode: "0600"
      when: nearmetal_plan_file | length > 0
      changed_when: false

    - name: Copy accepted runs
      ansible.builtin.copy:
        src: "{{ nearmetal_baseline }}{{ '/' if nearmetal_baseline is directory else '' }}"
        dest: "{{ nearmetal_folder.path }}/baseline/"
        mode: preserve
      when: nearmetal_baseline | length > 0
      changed_when: false

    - name: Measure
      ansible.builtin.command:
        argv: "{{ nearmetal_words + nearmetal_gate + nearmetal_options }}"
        chdir: "{{ nearmetal_folder.path }}"
      environment:
        COLUMNS: "1000"
      vars:
        nearmetal_file: "plan.toml{{ ':' if nearmetal_plan_part else '' }}{{ nearmetal_plan_part }}"
        nearmetal_words:
          - "{{ nearmetal_folder.path }}/nearmetal"
          - qualify
          - --quiet
          - --plan
          - "{{ ('./' ~ nearmetal_file) if nearmetal_plan_file else nearmetal_plan }}"
          - --label
          - "{{ inventory_hostname }}"
          - --out
          - result
        nearmetal_gate: "{{ ['--baseline', 'baseline'] if nearmetal_baseline else [] }}"
      register: nearmetal_run
      changed_when: false
      failed_when: nearmetal_run.rc not in [0, 1, 3]

    - name: Find the result
      ansible.builtin.find:
        paths: "{{ nearmetal_folder.path }}/result"
        file_type: file
      register: nearmetal_found

    - name: Fetch the result
      ansible.builtin.fetch:
        src: "{{ item.path }}"
        dest: "{{ nearmetal_results }}/{{ inventory_hostname }}/"
        flat: true
      loop: "{{ nearmetal_found.files }}"
      loop_control:
        label: "{{ item.path | basename }}"

    - name: Judge
      ansible.builtin.assert:
        that: nearmetal_run.rc == 0 or (nearmetal_run.rc == 3 and nearmetal_accept_inconclusive)
        fail_msg: "{{ (nearmetal_verdict + nearmetal_run.stdout_lines) | first }}"
        quiet: true
      vars:
        nearmetal_verdict: >-
          {{ nearmetal_run.stdout_lines | select('match', '(gate: )?(FAIL|INCONCLUSIVE)') | list }}
  always:
    - name: Remove the folder
      ansible.builtin.file:
        path: "{{ nearmetal_folder.path }}"
        state: absent
      when: nearmetal_folder.path is defined
      changed_when: false
"#;
