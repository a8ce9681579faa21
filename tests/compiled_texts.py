"""Compiled programs as compilers print them, cut to the parts that tell the costs."""

# An H100's program, shortened: two loops, one with a loop inside, a conditional, an
# asynchronous copy and a library call.
H100 = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%fused_computation (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %add.9 = f32[4]{0} add(%p, %p)
}

%inner_body (a: (s32[], f32[4])) -> (s32[], f32[4]) {
  %a = (s32[], f32[4]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%a), index=0
  %next.1 = s32[] fusion(%i.1), kind=kLoop, calls=%fused_computation
  ROOT %t.1 = (s32[], f32[4]{0}) tuple(%next.1, %i.1)
}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  %b = (s32[], f32[4]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%b), index=0
  %h = f32[4]{0} get-tuple-element(%b), index=1
  %dot = (f32[4]{0}, s8[64]{0}) custom-call(%h, %h), \
custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"kind":"x"}}
  %z = f32[4]{0} get-tuple-element(%dot), index=0
  %kernel = f32[4]{0} fusion(%z), kind=kCustom, calls=%fused_computation, \
metadata={op_name="jit(f)/while/body/odd)name{}/mul" stack_frame_id=7}, \
backend_config={"fusion_backend_config":{"kind":"__triton","x":"1"}}
  %while.3 = (s32[], f32[4]{0}) while(%b), condition=%cond, body=%inner_body, \
backend_config={"known_trip_count":{"n":"2"}}
  %next.2 = s32[] fusion(%i.2), kind=kLoop, calls=%fused_computation
  ROOT %t.2 = (s32[], /*index=1*/f32[4]{0}) tuple(%next.2, %kernel)
}

%cond (c: (s32[], f32[4])) -> pred[] {
  %c = (s32[], f32[4]{0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%c), index=0
  ROOT %lt = pred[] fusion(%i.3), kind=kLoop, calls=%fused_computation
}

%cheap (d: f32[4]) -> f32[4] {
  ROOT %d = f32[4]{0} parameter(0)
}

%dear (e: f32[4]) -> f32[4] {
  %e = f32[4]{0} parameter(0)
  %copy.1 = f32[4]{0} copy(%e)
  ROOT %copy.2 = f32[4]{0} copy(%copy.1)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = s32[] copy(%zero)
  %copy-start = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%x)
  %copy-done = f32[4]{0} copy-done(%copy-start)
  %tuple = (s32[], f32[4]{0}) tuple(%start, %copy-done)
  %while.1 = (s32[], f32[4]{0}) while(%tuple), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0"}}
  %h.1 = f32[4]{0} get-tuple-element(%while.1), index=1
  %which = f32[4]{0} conditional(%zero, %h.1, %h.1), \
branch_computations={%cheap, %dear}
  %while.2 = (s32[], f32[4]{0}) while(%tuple), condition=%cond, body=%inner_body
  ROOT %root = f32[4]{0} bitcast(%which)
}
"""

# A TPU's program: trips are only in the condition, cycles stand beside instructions.
V5E = """\
HloModule jit_step, is_scheduled=true

%body (b: (s32[], f32[8,4], s32[])) -> (s32[], f32[8,4], s32[]) {
  %one = s32[]{:T(128)} constant(1)
  %b = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)S(1)}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%b), index=0
  %n = s32[]{:T(128)} get-tuple-element(%b), index=2
  %h = f32[8,4]{1,0:T(8,128)S(1)} get-tuple-element(%b), index=1
  %cheap = f32[8,4]{1,0:T(8,128)S(1)} copy(%h), \
backend_config={"window_config":{"estimated_cycles":"20","x":["1"]}}
  %dear = f32[8,4]{1,0:T(8,128)S(1)} fusion(%cheap), kind=kOutput, calls=%fused, \
metadata={op_name="jit(f)/while/body/mul"}, \
backend_config={"window_config":{"estimated_cycles":"768"}}
  %unpriced = f32[8,4]{1,0:T(8,128)S(1)} dynamic-update-slice(%dear, %cheap, %i, %i)
  %next = s32[]{:T(128)} add(%i, %one)
  ROOT %t = (s32[]{:T(128)}, f32[8,4]{1,0}, s32[]{:T(128)}) tuple(%next, %dear, %n)
}

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %mul = f32[8,4]{1,0} multiply(%p, %p), \
backend_config={"window_config":{"estimated_cycles":"9999"}}
}

%cond (c: (s32[], f32[8,4], s32[])) -> pred[] {
  %limit = s32[]{:T(128)} constant(30)
  %c = (s32[]{:T(128)}, f32[8,4]{1,0}, s32[]{:T(128)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%c), index=0
  ROOT %lt = pred[]{:T(512)} compare(%j, %limit), direction=LT
}

%cond.2 (c: (s32[], f32[8,4], s32[])) -> pred[] {
  %c.2 = (s32[]{:T(128)}, f32[8,4]{1,0}, s32[]{:T(128)}) parameter(0)
  %j.2 = s32[]{:T(128)} get-tuple-element(%c.2), index=0
  %k.2 = s32[]{:T(128)} get-tuple-element(%c.2), index=2
  ROOT %lt.2 = pred[]{:T(512)} compare(%j.2, %k.2), direction=LT
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0:T(8,128)} parameter(0)
  %two = s32[]{:T(128)} constant(2)
  %nine = s32[]{:T(128)} constant(9)
  %start = s32[]{:T(128)} copy(%two)
  %buffer = f32[8,4]{1,0:T(8,128)} custom-call(), custom_call_target="AllocateBuffer"
  %tuple = (s32[]{:T(128)}, f32[8,4]{1,0}, s32[]) tuple(%start, %x, %nine)
  %while.1 = (s32[]{:T(128)}, f32[8,4]{1,0}, s32[]) while(%tuple), condition=%cond, \
body=%body
  %while.2 = (s32[]{:T(128)}, f32[8,4]{1,0}, s32[]) while(%tuple), condition=%cond.2, \
body=%body
  %h.2 = f32[8,4]{1,0} get-tuple-element(%while.2), index=1
  ROOT %out = f32[8,4]{1,0} fusion(%h.2), kind=kLoop, calls=%fused, \
backend_config={"window_config":{"estimated_cycles":"100"}}
}
"""
