// Does on the browser's GPU what a trace of wgpu asks for, and answers with the bytes that were read back.
"use strict";

// The trace's notation, RON, is like JSON, with names before parentheses. `Name(a: 1)` becomes { is: "Name", a: 1 }, and
// `Name(1)` becomes { is: "Name", 0: 1 }; options and pointers become what they hold.
function parseRon(text) {
  const tokens = text.matchAll(/([A-Za-z_]\w*)|("(?:[^"\\]|\\.)*")|(-?\d[\w.]*)|([^\s])/gs);
  let token = tokens.next().value;
  const next = () => { const last = token; token = tokens.next().value; return last; };
  const at = (sign) => token && token[4] === sign;
  const list = (end, item) => {
    const items = [];
    next();
    while (token && !at(end)) {
      items.push(item());
      if (at(",")) next();
    }
    next();
    return items;
  };
  function value() {
    if (at("[")) return list("]", value);
    if (at("{")) return Object.fromEntries(list("}", () => { const key = value(); next(); return [key, value()]; }));
    if (at("(")) return fields();
    const [, name, string, number] = next();
    if (string) return JSON.parse(string);
    if (number) return Number(number);
    if (name === "None") return null;
    if (name === "true" || name === "false") return name === "true";
    const inside = at("(") ? fields() : [];
    return name === "Some" || name === "PointerId" ? inside[0] : { is: name, ...inside };
  }
  // A tuple, or a struct if its values have names.
  function fields() {
    let named = false;
    const items = list(")", () => {
      const item = value();
      if (!at(":")) return item;
      named = true;
      next();
      return [item.is, value()];
    });
    return named ? Object.fromEntries(items) : items;
  }
  // The list of a device that is still open has no end.
  return list("]", value);
}

class Replay {
  constructor(device, trace, answer) {
    Object.assign(this, { device, answer, files: trace.files, pipelines: trace.pipelines, objects: new Map() });
  }

  get(pointer) {
    if (!this.objects.has(pointer)) throw new Error(`the trace names ${pointer} before it is made`);
    return this.objects.get(pointer);
  }

  async do(action) {
    const name = action.is;
    if (/^(Init$|Drop|Destroy)/.test(name)) return;
    if (!this[name]) throw new Error(`the trace asks for ${name}, which this page does not know`);
    this.device.pushErrorScope("validation");
    await this[name](action);
    const error = await this.device.popErrorScope();
    const desc = action.desc ?? action[1];
    if (error) this.answer.errors.push(`${name} ${desc?.label ?? ""}: ${error.message}`);
  }

  CreateBuffer({ 0: pointer, 1: desc }) {
    let usage = GPUBufferUsage.COPY_DST;
    // What was mapped is written as from a queue.
    for (const flag of desc.usage.split(" | ")) usage |= flag === "MAP_WRITE" ? 0 : GPUBufferUsage[flag];
    const buffer = this.device.createBuffer({ label: desc.label ?? "", size: desc.size, usage });
    this.objects.set(pointer, buffer);
  }

  WriteBuffer({ id, data, offset, size }) {
    const bytes = Uint8Array.from(this.files[data[0]]);
    if (size > 0) this.device.queue.writeBuffer(this.get(id), offset, bytes, 0, size);
  }

  CreateBindGroupLayout({ 0: pointer, 1: desc }) {
    const entries = desc.entries.map(({ binding, ty }) => {
      const kind = ty.ty.is === "Uniform" ? "uniform" : ty.ty.read_only ? "read-only-storage" : "storage";
      const buffer = { type: kind, hasDynamicOffset: ty.has_dynamic_offset, minBindingSize: ty.min_binding_size ?? 0 };
      return { binding, visibility: GPUShaderStage.COMPUTE, buffer };
    });
    this.objects.set(pointer, this.device.createBindGroupLayout({ label: desc.label ?? "", entries }));
  }

  CreatePipelineLayout({ 0: pointer, 1: desc }) {
    const bindGroupLayouts = desc.bind_group_layouts.map((layout) => this.get(layout));
    this.objects.set(pointer, this.device.createPipelineLayout({ label: desc.label ?? "", bindGroupLayouts }));
  }

  CreateBindGroup({ 0: pointer, 1: desc }) {
    const entries = desc.entries.map(({ binding, resource: { 0: part } }) => ({
      binding,
      resource: { buffer: this.get(part.buffer), offset: part.offset, size: part.size ?? undefined },
    }));
    const layout = this.get(desc.layout);
    this.objects.set(pointer, this.device.createBindGroup({ label: desc.label ?? "", layout, entries }));
  }

  async CreateShaderModule({ id, desc, data }) {
    const module = this.device.createShaderModule({ label: desc.label ?? "", code: this.files[data[0]] });
    this.objects.set(id, module);
    this.answer.modules += 1;
    for (const { type, lineNum, message } of (await module.getCompilationInfo()).messages) {
      if (type === "error") this.answer.errors.push(`${desc.label}, line ${lineNum}: ${message}`);
    }
  }

  async CreateComputePipeline({ id, desc: { label, layout, stage } }) {
    if (!this.pipelines) return;
    const compute = { module: this.get(stage.module), entryPoint: stage.entry_point ?? undefined };
    const pipeline = this.device.createComputePipelineAsync({ label: label ?? "", layout: this.get(layout), compute });
    try {
      this.objects.set(id, await pipeline);
      this.answer.pipelines += 1;
    } catch (error) {
      this.answer.errors.push(`${label}: ${error.message}`);
    }
  }

  async Submit({ 1: commands }) {
    const encoder = this.device.createCommandEncoder();
    const read = new Set();
    for (const command of commands) {
      if (command.is === "RunComputePass") {
        this.computePass(encoder.beginComputePass(), command.pass);
      } else if (command.is === "CopyBufferToBuffer") {
        const [src, dst] = [this.get(command.src), this.get(command.dst)];
        const size = command.size ?? src.size - command.src_offset;
        encoder.copyBufferToBuffer(src, command.src_offset, dst, command.dst_offset, size);
        if (dst.usage & GPUBufferUsage.MAP_READ) read.add(dst);
      } else if (command.is === "ClearBuffer") {
        encoder.clearBuffer(this.get(command.dst), command.offset, command.size ?? undefined);
      } else {
        throw new Error(`the trace asks for ${command.is}, which this page does not know`);
      }
    }
    this.device.queue.submit([encoder.finish()]);
    for (const buffer of read) {
      await buffer.mapAsync(GPUMapMode.READ);
      this.answer.read.push([...new Uint8Array(buffer.getMappedRange())]);
      buffer.unmap();
    }
  }

  computePass(pass, { commands, dynamic_offsets: offsets }) {
    let used = 0;
    for (const command of commands) {
      if (command.is === "SetPipeline") {
        pass.setPipeline(this.get(command[0]));
      } else if (command.is === "SetBindGroup") {
        const mine = offsets.slice(used, used += command.num_dynamic_offsets);
        pass.setBindGroup(command.index, this.get(command.bind_group), mine);
      } else if (command.is === "DispatchWorkgroups") {
        pass.dispatchWorkgroups(...command[0]);
      } else if (!/Debug/.test(command.is)) {
        throw new Error(`the trace asks for ${command.is}, which this page does not know`);
      }
    }
    pass.end();
  }
}

async function replay(trace) {
  const answer = { adapter: "none", modules: 0, pipelines: 0, errors: [], read: [] };
  try {
    const adapter = await navigator.gpu?.requestAdapter();
    if (!adapter) return answer;
    answer.adapter = `${adapter.info.vendor} ${adapter.info.architecture}`;
    const device = await adapter.requestDevice({ requiredFeatures: trace.subgroups ? ["subgroups"] : [] });
    device.addEventListener("uncapturederror", ({ error }) => answer.errors.push(error.message));
    const machine = new Replay(device, trace, answer);
    for (const action of parseRon(trace.ron)) await machine.do(action);
  } catch (error) {
    answer.errors.push(`${error}`);
  }
  return answer;
}

// The page has not loaded, and so the browser does not end, before this frame has.
const waiting = document.body.appendChild(document.createElement("iframe"));
waiting.contentDocument.open();
replay(TRACE).then((answer) => {
  document.getElementById("answer").textContent = JSON.stringify(answer);
  waiting.contentDocument.close();
});
