// The bank that a unit's next piece of work reads: from sample `change[15:0]` on it is bank `change[16]`. A sample has
// COUNT steps. What is told is told before the first word of that sample is let in, so that it is always in time.
module bank_switch #(
    parameter int COUNT = 1
) (
    input  logic        clk,
    input  logic        rst,
    input  logic        step,
    input  logic [16:0] change,
    output logic        bank
);
    logic last;
    logic [15:0] sample, next;
    logic [16:0] told;

    counter #(.COUNT(COUNT)) steps (.clk, .rst, .step, .last);
    assign next = sample + 16'(step && last);

    always_ff @(posedge clk) begin
        told <= change;
        sample <= rst ? '0 : next;
        if (rst || next == told[15:0]) bank <= told[16];
    end
endmodule
